#include "trainer/rewards/external/service_call.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, ServiceOptions& options) {
  binder.Integer("workers", &options.workers, {.min = 1, .max = 1024}, "requests",
                 "under way at once");
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "longest wait for the answer to one request");
  binder.Integer("max_attempts", &options.max_attempts, {.min = 1, .max = 100}, "attempts",
                 "of one request, where it finds no service, no answer in time, 429 or 5xx");
  binder.Number("retry_initial_seconds", &options.retry_initial_seconds, {.min = 0}, "s",
                "longest pause before the second attempt; it doubles with each, and a pause is "
                "drawn between 0 and it, or is what the service asks for (Retry-After)");
  binder.Number("retry_max_seconds", &options.retry_max_seconds, {.min = 0}, "s",
                "longest pause that is drawn");
  binder.Integer("breaker_failures", &options.breaker_failures, {.min = 0}, "attempts",
                 "that fail in a row, of all workers, until completions fail at once; 0: never");
  binder.Number("breaker_pause_seconds", &options.breaker_pause_seconds, {.min = 0}, "s",
                "until one request tries such a service again");
}

double BackoffSeconds(int64_t failures, double initial_seconds, double max_seconds,
                      double uniform) {
  const double doubled = initial_seconds * std::exp2(static_cast<double>(failures));
  return uniform * std::min(max_seconds, doubled);
}

ServiceCaller::ServiceCaller(std::string name, const ServiceOptions& options, RewardTally* tally,
                             SecondsClock clock)
    : name_(std::move(name)),
      options_(options),
      tally_(tally),
      clock_(std::move(clock)),
      breaker_(options.breaker_failures, options.breaker_pause_seconds),
      draws_(std::random_device{}()) {}

absl::Status ServiceCaller::Admit() {
  MutexLock lock(&mu_);
  return breaker_.Admit(clock_());
}

void ServiceCaller::Note(const Attempt& attempt) {
  bool opened = false, was_open = false;
  double open_until = 0;
  const std::string why(attempt.status.message());
  {
    MutexLock lock(&mu_);
    was_open = !breaker_.is_closed();
    if (attempt.not_made || attempt.status.code() == absl::StatusCode::kCancelled) {
      breaker_.GaveUp();
    } else if (attempt.status.ok() || attempt.is_busy || !attempt.may_repeat) {
      breaker_.Succeeded();
    } else {
      opened = breaker_.Failed(clock_(), why);
    }
    if (!breaker_.is_closed()) open_until = breaker_.try_at();
  }
  if (was_open || open_until > 0) tally_->SetUnansweredUntil(open_until);
  if (!opened) return;
  log::Warning("a reward service fails: its circuit breaker opens",
               {{"component", name_}, {"reason", why}});
  tally_->AddEvent("reward_breaker_opened", absl::StrCat(name_, ": ", why));
}

double ServiceCaller::PauseAfter(const Attempt& attempt, int64_t failures) {
  MutexLock lock(&mu_);
  const double uniform = std::uniform_real_distribution<double>()(draws_);
  return std::max(attempt.retry_after_seconds,
                  BackoffSeconds(failures, options_.retry_initial_seconds,
                                 options_.retry_max_seconds, uniform));
}

absl::Status ServiceCaller::Call(absl::FunctionRef<Attempt()> attempt, const Pause& pause) {
  for (int64_t failures = 0;; ++failures) {
    TANDEM_RETURN_IF_ERROR(Admit());
    const Attempt made = attempt();
    Note(made);
    if (made.status.ok() || !made.may_repeat) return made.status;
    const auto failed = [&](const std::string& how) {
      return absl::Status(made.status.code(),
                          absl::StrCat(std::string(made.status.message()), " (", how, ")"));
    };
    if (failures + 1 >= options_.max_attempts) {
      return failures == 0 ? made.status : failed(absl::StrCat(failures + 1, " attempts"));
    }
    if (made.retry_after_seconds > kLongestRetryAfterSeconds) {
      return failed(absl::StrCat("it asks for a pause of ", made.retry_after_seconds, " s"));
    }
    if (pause(PauseAfter(made, failures))) return Cancelled("the run ends");
  }
}

ServiceCaller::Pause PauseUntil(EndSign* end) {
  return [end](double seconds) {
    return end->WaitFor(std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000))));
  };
}

}  // namespace tandem::trainer
