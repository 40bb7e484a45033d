// CircuitBreaker: stops asking a service that fails again and again, so that completions fail at
// once instead of after minutes of retries, and the service is left alone. Nygard, "Release It!".
// Pure state machine: no clock, no lock. Used by service_call.cc.
//
//   closed     every call is admitted; `failures` in a row open it
//   open       no call is admitted until `pause_seconds` have passed; then it is half-open
//   half-open  one call at a time is admitted: if it succeeds it closes, if it fails it opens again
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tandem::trainer {

// Thread-compatible. Times are seconds of any clock that does not go back.
class CircuitBreaker {
 public:
  // `failures` 0: never opens.
  CircuitBreaker(int64_t failures, double pause_seconds)
      : failures_(failures), pause_seconds_(pause_seconds) {}

  // May a call be made now? After OK, one of Succeeded, Failed and GaveUp must follow.
  //   UNAVAILABLE  "circuit breaker is open: ...", with the last failure and when it will try again
  absl::Status Admit(double now);

  void Succeeded();
  // True if this failure opened it, from closed.
  bool Failed(double now, const std::string& why);
  // The call ended without saying anything about the service.
  void GaveUp() { trying_ = false; }

  bool is_closed() const { return !is_open_; }
  double try_at() const { return try_at_; }  // while it is open: when a call is admitted again

 private:
  const int64_t failures_;
  const double pause_seconds_;
  int64_t in_row_ = 0;
  bool is_open_ = false;  // or half-open, from try_at_ on
  bool trying_ = false;   // the one call of half-open is under way
  double try_at_ = 0;
  std::string last_failure_;
};

}  // namespace tandem::trainer
