// TrainerHealth: the answers of a trainer process to probes. It is started once the ranks have met
// and, on rank 0, the servers have been reached; it is live while its loop moves, and ready when
// both hold. Made by run_trainer.cc; the thread that trains keeps the heartbeat. Thread-safe.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/observe/health.h"

namespace tandem::trainer {

class TrainerHealth {
 public:
  // Answers on `health`, which must outlive it. Not live when the heartbeat was silent for as long
  // as `liveness_seconds`.
  TrainerHealth(Health* health, double liveness_seconds, SecondsClock clock = MonotonicSeconds);
  ~TrainerHealth();  // afterwards: live, and not ready
  TrainerHealth(const TrainerHealth&) = delete;
  TrainerHealth& operator=(const TrainerHealth&) = delete;

  // `how`: one line for the answer.
  void SetStarted(const std::string& how) ABSL_LOCKS_EXCLUDED(mu_);

  // The heartbeat of the thread that trains.
  Heartbeat* heartbeat() { return &heartbeat_; }

 private:
  ProbeAnswer Started() const ABSL_LOCKS_EXCLUDED(mu_);
  ProbeAnswer Live() const;
  ProbeAnswer Ready() const;

  Health* const health_;
  const double liveness_seconds_;
  Heartbeat heartbeat_;

  mutable Mutex mu_;
  ProbeAnswer started_ ABSL_GUARDED_BY(mu_) = {false,
                                               "loading the model and meeting the other ranks"};
};

}  // namespace tandem::trainer
