#include "trainer/metrics/trainer_health.h"

#include "absl/strings/str_format.h"

namespace tandem::trainer {

TrainerHealth::TrainerHealth(Health* health, double liveness_seconds, SecondsClock clock)
    : health_(health), liveness_seconds_(liveness_seconds), heartbeat_(std::move(clock)) {
  health_->Set(Probe::kStarted, [this] { return Started(); });
  health_->Set(Probe::kReady, [this] { return Ready(); });
  health_->Set(Probe::kLive, [this] { return Live(); });
}

TrainerHealth::~TrainerHealth() {
  health_->Set(Probe::kStarted, {true, "stopping"});
  health_->Set(Probe::kReady, {false, "stopping"});
  health_->Set(Probe::kLive, {true, "stopping"});
}

void TrainerHealth::SetStarted(const std::string& how) {
  MutexLock lock(&mu_);
  started_ = {true, how};
}

ProbeAnswer TrainerHealth::Started() const {
  MutexLock lock(&mu_);
  return started_;
}

ProbeAnswer TrainerHealth::Live() const {
  const double silent = heartbeat_.SilentSeconds();
  if (silent < liveness_seconds_) return {true, "the loop moves"};
  return {false,
          absl::StrFormat("the loop did not move for %.1f s (trainer.liveness_seconds: %.1f)",
                          silent, liveness_seconds_)};
}

ProbeAnswer TrainerHealth::Ready() const {
  const ProbeAnswer live = Live();
  return live.yes ? Started() : live;
}

}  // namespace tandem::trainer
