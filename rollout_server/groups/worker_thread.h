// WorkerThread: runs tasks one after the other, off the gRPC threads. Used by WeightService.
//
// Thread-safe. Destruction runs what is queued, then joins.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace tandem::rollout {

class WorkerThread {
 public:
  explicit WorkerThread(size_t max_waiting = kMaxWaiting);
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // False, and the task is dropped, when max_waiting tasks wait.
  bool Run(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr size_t kMaxWaiting = 16;

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);

  const size_t max_waiting_;

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tandem::rollout
