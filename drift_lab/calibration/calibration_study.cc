#include "drift_lab/calibration/calibration_study.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

// A thread takes this many trials at once, because neighbours in the plan share a server.
constexpr size_t kTogether = 10;

// Hands out trials, stores their results and keeps the first error. Thread-safe.
class TrialQueue {
 public:
  TrialQueue(std::vector<PlannedTrial> missing, TrialStore& store, const CalibrationHooks& hooks)
      : missing_(std::move(missing)), store_(store), hooks_(hooks) {}

  std::span<const PlannedTrial> Next() {
    MutexLock lock(&mu_);
    if (!status_.ok()) return {};
    const auto next =
        std::span(missing_).subspan(next_, std::min(kTogether, missing_.size() - next_));
    next_ += next.size();
    return next;
  }

  // Makes and stores one trial. Returns false if the study is to end.
  bool Make(TrialMaker& maker, const PlannedTrial& trial) {
    if (Stopped()) return false;
    const absl::StatusOr<TrialResult> result = maker.Make(trial);
    absl::Status status = result.ok() ? store_.Add(trial, *result) : result.status();
    MutexLock lock(&mu_);
    if (!status.ok()) {
      if (status_.ok()) {
        status_ =
            absl::Status(status.code(), absl::StrCat(trial.fault, " at ", trial.strength, ", seed ",
                                                     trial.seed, ": ", status.message()));
      }
      return false;
    }
    ++num_done_;
    if (hooks_.on_progress) {
      hooks_.on_progress(num_done_, static_cast<int64_t>(missing_.size()), trial);
    }
    return true;
  }

  absl::Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  bool Stopped() {
    MutexLock lock(&mu_);
    if (status_.ok() && hooks_.should_stop && hooks_.should_stop()) {
      status_ = Cancelled("stopped after ", num_done_, " of ", missing_.size(),
                          " trials; the same command goes on");
    }
    return !status_.ok();
  }

  const std::vector<PlannedTrial> missing_;
  TrialStore& store_;
  const CalibrationHooks& hooks_;
  Mutex mu_;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_done_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status RunTrials(const Subject& subject, const CaptureShape& shape,
                       std::span<const PlannedTrial> plan, int threads, TrialStore& store,
                       const CalibrationHooks& hooks) {
  std::vector<PlannedTrial> missing;
  for (const PlannedTrial& trial : plan) {
    if (!store.Has(trial)) missing.push_back(trial);
  }
  TrialQueue queue(std::move(missing), store, hooks);
  const auto work = [&] {
    TrialMaker maker(subject, shape);
    for (auto trials = queue.Next(); !trials.empty(); trials = queue.Next()) {
      for (const PlannedTrial& trial : trials) {
        if (!queue.Make(maker, trial)) return;
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return queue.status();
}

}  // namespace tandem::drift
