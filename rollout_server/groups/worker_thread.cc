#include "rollout_server/groups/worker_thread.h"

#include <utility>

namespace tandem::rollout {

WorkerThread::WorkerThread(size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { Loop(); }) {}

WorkerThread::~WorkerThread() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

bool WorkerThread::Run(std::function<void()> task) {
  MutexLock lock(&mu_);
  if (stopping_ || tasks_.size() >= max_waiting_) return false;
  tasks_.push_back(std::move(task));
  wake_.Notify();
  return true;
}

void WorkerThread::Loop() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) wake_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace tandem::rollout
