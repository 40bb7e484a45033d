// ServiceCaller: calls a reward service that may fail: repeats what may go better later, waits
// longer each time, and stops asking through a circuit breaker. One policy for HTTP, gRPC and
// judges. Used by http_reward.cc, grpc_reward.cc and judge_reward.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/options/options.h"
#include "trainer/rewards/external/circuit_breaker.h"
#include "trainer/rewards/external/reward_tally.h"

namespace tandem::trainer {

struct ServiceOptions {
  int64_t workers = 8;  // requests under way at once
  double timeout_seconds = 60;
  int64_t max_attempts = 5;
  double retry_initial_seconds = 0.5;
  double retry_max_seconds = 30;
  int64_t breaker_failures = 20;  // 0: no breaker
  double breaker_pause_seconds = 30;
};
void BindOptions(OptionBinder& binder, ServiceOptions& options);

// How one attempt of a call ended.
struct Attempt {
  absl::Status status;
  bool may_repeat = false;         // it could go better later: no connection, no answer, 429, 5xx
  bool is_busy = false;            // the service works and has no room now (429): no failure of it
  double retry_after_seconds = 0;  // the service asked for this pause; 0: it did not
  bool not_made = false;           // nothing was sent: it says nothing about the service
};

// Exponential backoff with full jitter: uniform in [0, min(max, initial * 2^failures)), where
// `uniform` is a draw of [0, 1). Marc Brooker, "Exponential Backoff and Jitter", AWS 2015.
double BackoffSeconds(int64_t failures, double initial_seconds, double max_seconds, double uniform);

// The longest pause that a service may ask for. A call whose service asks for more fails at once.
inline constexpr double kLongestRetryAfterSeconds = 600;

// Thread-safe: the callers of one service share its breaker.
class ServiceCaller {
 public:
  // Waits for so many seconds, or until the run ends. True if it ends.
  using Pause = std::function<bool(double seconds)>;

  // `name` opens messages ("reward.http"). `tally` must outlive it; it gets an event when the
  // breaker opens.
  ServiceCaller(std::string name, const ServiceOptions& options, RewardTally* tally,
                SecondsClock clock = MonotonicSeconds);

  // Makes attempts until one is OK or may not be repeated, or max_attempts were made, or the
  // breaker is open. A question may be asked any number of times: answers change nothing. `pause`
  // waits between two attempts.
  //   the status of the last attempt  with the number of attempts where there were several
  //   UNAVAILABLE  the breaker is open (CircuitBreaker::Admit)
  //   CANCELLED    the run ends
  absl::Status Call(absl::FunctionRef<Attempt()> attempt, const Pause& pause)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Admit() ABSL_LOCKS_EXCLUDED(mu_);
  void Note(const Attempt& attempt) ABSL_LOCKS_EXCLUDED(mu_);
  double PauseAfter(const Attempt& attempt, int64_t failures) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string name_;
  const ServiceOptions options_;
  RewardTally* const tally_;
  const SecondsClock clock_;

  Mutex mu_;
  CircuitBreaker breaker_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 draws_ ABSL_GUARDED_BY(mu_);  // of pauses alone: rewards do not depend on it
};

// The pause of a worker: until `end` is given.
ServiceCaller::Pause PauseUntil(EndSign* end);

}  // namespace tandem::trainer
