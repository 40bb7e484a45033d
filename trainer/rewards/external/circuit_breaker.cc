#include "trainer/rewards/external/circuit_breaker.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {

absl::Status CircuitBreaker::Admit(double now) {
  if (!is_open_) return absl::OkStatus();
  if (now >= try_at_ && !trying_) {
    trying_ = true;
    return absl::OkStatus();
  }
  const std::string next =
      trying_ ? std::string("one call tries it now")
              : absl::StrCat("it is tried again in ", std::ceil(try_at_ - now), " s");
  return Unavailable("the circuit breaker is open after ", in_row_, " failures in a row, ", next,
                     "; the last: ", last_failure_);
}

void CircuitBreaker::Succeeded() {
  in_row_ = 0;
  is_open_ = trying_ = false;
}

bool CircuitBreaker::Failed(double now, const std::string& why) {
  ++in_row_;
  last_failure_ = why;
  trying_ = false;
  if (failures_ == 0 || in_row_ < failures_) return false;
  const bool opens = !is_open_;
  is_open_ = true;
  try_at_ = now + pause_seconds_;
  return opens;
}

}  // namespace tandem::trainer
