// Deadlines of calls, as the server sees them.
#pragma once

#include <chrono>
#include <cmath>
#include <limits>

#include "absl/status/status.h"

namespace tandem::rollout {

// gRPC rounds the timeout of a call up to two or three digits, by a hundredth of it at most: 1234 s
// travel as 1240 s.
inline constexpr double kTimeoutRounding = 1.01;

// Until the deadline; infinite without one, negative when it has passed. `Context`: a gRPC server
// context.
template <typename Context>
double SecondsLeft(const Context& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return std::numeric_limits<double>::infinity();
  }
  return std::chrono::duration<double>(deadline - std::chrono::system_clock::now()).count();
}

// How a call ends that gRPC calls off. The caller's own clock ends a call at its deadline before
// this side's does, by the rounding and by the time that the call took to come here.
inline absl::StatusCode CalledOff(double seconds_given, double seconds_left) {
  constexpr double kTransitSeconds = 0.1;
  return std::isfinite(seconds_given) &&
                 seconds_left <= seconds_given * (kTimeoutRounding - 1) + kTransitSeconds
             ? absl::StatusCode::kDeadlineExceeded
             : absl::StatusCode::kCancelled;
}

}  // namespace tandem::rollout
