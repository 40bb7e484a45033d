// Health: a process's answers to the three probes of cluster software (docs/observability.md).
// Parts of the process set their answers as they start and reset them before they end. Thread-safe.
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
  kStarted,  // startup has finished; the other probes are not asked before
  kReady,    // the process accepts work now
  kLive,     // the process makes progress; if not, only a restart helps
};

struct ProbeAnswer {
  bool yes = false;
  std::string why;  // one line
};

class Health {
 public:
  // Initially live, and neither started nor ready.
  Health();

  // `answer` must not block and must not call this object. When Set returns, the previous answer is
  // no longer running.
  void Set(Probe probe, std::function<ProbeAnswer()> answer) ABSL_LOCKS_EXCLUDED(mu_);
  void Set(Probe probe, ProbeAnswer answer);

  ProbeAnswer Ask(Probe probe) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::array<std::function<ProbeAnswer()>, 3> answers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_COMMON_OBSERVE_HEALTH_H_
