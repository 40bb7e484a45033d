// StepGate: lets a test say when a scripted engine may step.
#pragma once

#include <cstdint>

#include "common/base/mutex.h"

namespace tandem::rollout::testing {

// Steps the test allows; an engine without any waits in Step, as a slow model would.
class StepGate {
 public:
  void Allow(int64_t steps) {
    MutexLock lock(&mu_);
    allowed_ += steps;
    changed_.NotifyAll();
  }
  void Open() { Allow(int64_t{1} << 40); }
  int64_t allowed() {
    MutexLock lock(&mu_);
    return allowed_;
  }
  void Pass() {
    MutexLock lock(&mu_);
    ++num_waiting_;
    changed_.NotifyAll();
    while (allowed_ == 0) changed_.Wait(&mu_);
    --num_waiting_;
    --allowed_;
  }
  // Returns once a step waits here.
  void AwaitStep() {
    MutexLock lock(&mu_);
    while (num_waiting_ == 0) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t allowed_ = 0;
  int64_t num_waiting_ = 0;
};

}  // namespace tandem::rollout::testing
