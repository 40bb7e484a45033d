// RewardTally: what external scorers did since the loop last looked: numbers for metrics.jsonl and
// events of the run. Used by the components of external/, read by reward_queue.cc.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace tandem::trainer {

// An event for events.jsonl of the run.
struct RewardEvent {
  std::string kind;  // reward_breaker_opened, reward_budget_spent, reward_raised
  std::string message;
};

struct RewardNumbers {
  int64_t cache_hits = 0;          // answers that nobody had to be asked for
  int64_t judge_calls = 0;         // requests to the judge, repeated ones included
  int64_t judge_tokens = 0;        // of them, prompt and reply
  int64_t pairs = 0;               // of completions that were compared in both orders
  int64_t pair_disagreements = 0;  // of them, those whose two orders gave different verdicts
  double model_disagreement = 0;   // summed over the completions that a reward model scored ...
  int64_t model_rewards = 0;       // ... which are so many
  int64_t python_calls = 0;        // of functions in Python ...
  double python_seconds = 0;       // ... and the time they took in their processes
  std::map<std::string, std::pair<double, int64_t>> logged;  // sum and count, by name: log_metric
  std::vector<double> latencies;  // seconds from the question to the reward, of each group
};

// Thread-safe.
class RewardTally {
 public:
  // Changes the numbers under the lock.
  template <typename Change>
  void Update(const Change& change) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    change(numbers_);
  }

  void AddEvent(std::string kind, std::string message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    events_.push_back({std::move(kind), std::move(message)});
  }

  // The same once for each `key`. Whether it was the first.
  bool AddEventOnce(const std::string& key, std::string kind, std::string message)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (!seen_.insert(key).second) return false;
    events_.push_back({std::move(kind), std::move(message)});
    return true;
  }

  // Until when a service is not asked because its breaker is open, in MonotonicSeconds; 0: all are
  // asked.
  void SetUnansweredUntil(double seconds) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    unanswered_until_ = seconds;
  }
  double unanswered_until() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return unanswered_until_;
  }

  // The numbers, and the events, since the last call, which start anew.
  RewardNumbers TakeNumbers() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return std::exchange(numbers_, {});
  }
  std::vector<RewardEvent> TakeEvents() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return std::exchange(events_, {});
  }

 private:
  Mutex mu_;
  RewardNumbers numbers_ ABSL_GUARDED_BY(mu_);
  std::vector<RewardEvent> events_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> seen_ ABSL_GUARDED_BY(mu_);  // keys of AddEventOnce
  double unanswered_until_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tandem::trainer
