// Mutex, MutexLock, CondVar, EndSign: std::mutex with Clang's thread-safety annotations. The
// project does not use absl::Mutex, because Debian's build of Abseil is not instrumented and TSan
// reports false races on it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace tandem {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds `mu` from construction to destruction.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable. The caller holds `mu`; waiting releases it and takes it again before
// returning. Spurious wake-ups happen, so wait in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }

  // Returns false if `deadline` passed first.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
#ifdef __SANITIZE_THREAD__
    // TSan of gcc 12 does not intercept a wait on the steady clock.
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto status = cv_.wait_until(
        lock, std::chrono::system_clock::now() +
                  std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
#else
    const auto status = cv_.wait_until(lock, deadline);
#endif
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  void Notify() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

// Tells a thread that works every now and then to end, and ends its pause at once. Thread-safe.
class EndSign {
 public:
  void Give() {
    MutexLock lock(&mu_);
    given_ = true;
    changed_.NotifyAll();
  }

  // Waits for `pause`, or until the sign is given. True if it was.
  bool WaitFor(std::chrono::milliseconds pause) {
    const auto until = std::chrono::steady_clock::now() + pause;
    MutexLock lock(&mu_);
    while (!given_ && changed_.WaitUntil(&mu_, until)) {
    }
    return given_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool given_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tandem
