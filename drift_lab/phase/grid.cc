#include "drift_lab/phase/grid.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace tandem::drift {
namespace {

// Hands out runs, and stores the results in the order of the plan, whichever thread finishes first.
// Thread-safe.
class RunQueue {
 public:
  RunQueue(std::vector<PlannedRun> missing, RunStore& store, const GridHooks& hooks)
      : missing_(std::move(missing)), store_(store), hooks_(hooks) {}

  // Null if there is nothing more to do.
  const PlannedRun* Next() {
    MutexLock lock(&mu_);
    if (!status_.ok() || next_ == missing_.size()) return nullptr;
    if (hooks_.should_stop && hooks_.should_stop()) {
      status_ =
          absl::CancelledError(absl::StrCat("stopped after ", num_stored_, " of ", missing_.size(),
                                            " runs; the same command goes on"));
      return nullptr;
    }
    return &missing_[next_++];
  }

  void Finish(const PlannedRun* run, RunResult result) {
    MutexLock lock(&mu_);
    finished_.emplace(static_cast<size_t>(run - missing_.data()), std::move(result));
    for (auto first = finished_.find(num_stored_); first != finished_.end();
         first = finished_.find(num_stored_)) {
      const absl::Status status = store_.Add(missing_[num_stored_], first->second);
      if (!status.ok()) {
        status_ = status;
        return;
      }
      finished_.erase(first);
      ++num_stored_;
    }
    if (hooks_.on_progress) {
      hooks_.on_progress(static_cast<int64_t>(num_stored_), static_cast<int64_t>(missing_.size()),
                         *run);
    }
  }

  absl::Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  const std::vector<PlannedRun> missing_;
  Mutex mu_;
  RunStore& store_ ABSL_GUARDED_BY(mu_);
  const GridHooks& hooks_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t num_stored_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<size_t, RunResult> finished_ ABSL_GUARDED_BY(mu_);  // that wait for earlier ones
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

RunResult MakeRun(const PlannedRun& run) { return RunToy(OptionsOf(run)); }

absl::Status RunGrid(std::span<const PlannedRun> plan, int threads,
                     const std::function<RunResult(const PlannedRun&)>& make, RunStore& store,
                     const GridHooks& hooks) {
  std::vector<PlannedRun> missing;
  std::copy_if(plan.begin(), plan.end(), std::back_inserter(missing),
               [&](const PlannedRun& run) { return store.Find(run) == nullptr; });
  RunQueue queue(std::move(missing), store, hooks);
  const auto work = [&queue, &make] {
    while (const PlannedRun* run = queue.Next()) queue.Finish(run, make(*run));
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return queue.status();
}

}  // namespace tandem::drift
