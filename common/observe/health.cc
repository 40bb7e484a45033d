#include "common/observe/health.h"

#include <utility>

namespace tandem {

Health::Health() {
  Set(Probe::kStarted, {false, "starting"});
  Set(Probe::kReady, {false, "starting"});
  Set(Probe::kLive, {true, "starting"});
}

void Health::Set(Probe probe, std::function<ProbeAnswer()> answer) {
  MutexLock lock(&mu_);
  answers_[static_cast<size_t>(probe)] = std::move(answer);
}

void Health::Set(Probe probe, ProbeAnswer answer) {
  Set(probe, [answer = std::move(answer)] { return answer; });
}

ProbeAnswer Health::Ask(Probe probe) const {
  MutexLock lock(&mu_);
  return answers_[static_cast<size_t>(probe)]();
}

}  // namespace tandem
