// Health: what a process answers to the three probes that cluster software asks
// (docs/observability.md). Parts of the process put their answers in as they come up and take them
// out before they go. Thread-safe.
#ifndef TANDEM_COMMON_OBSERVE_HEALTH_H_
#define TANDEM_COMMON_OBSERVE_HEALTH_H_

#include <array>
#include <cstddef>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace tandem {

enum class Probe {
  kStarted,  // it has come up, once and for all: nobody asks for the others before
  kReady,    // work may be sent here now
  kLive,     // it moves; if not, only a restart helps
};

struct ProbeAnswer {
  bool yes = false;
  std::string why;  // one line
};

class Health {
 public:
  // Until told otherwise: live, and neither started nor ready.
  Health();

  // `answer` must not block and not call this object. When Set returns, the one before it does not
  // run any more.
  void Set(Probe probe, std::function<ProbeAnswer()> answer) ABSL_LOCKS_EXCLUDED(mu_);
  void Set(Probe probe, ProbeAnswer answer);

  ProbeAnswer Ask(Probe probe) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::array<std::function<ProbeAnswer()>, 3> answers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_COMMON_OBSERVE_HEALTH_H_
