// Health: a process's answers to the three probes of cluster software (docs/observability.md).
// Parts of the process set their answers as they start and reset them before they end. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace tandem {

// Heartbeat: detects that a thread is stuck. The thread beats while it works and rests while it has
// nothing to do; a watcher asks how long it has been silent. Thread-safe.
class Heartbeat {
 public:
  explicit Heartbeat(SecondsClock clock = MonotonicSeconds) : clock_(std::move(clock)) {}

  // The thread made progress and continues to work.
  void Beat() { moved_.store(clock_()); }

  // The thread waits for work. Its silence has no meaning until it beats or is woken.
  void Rest() { moved_.store(kResting); }

  // Another thread gave it work, so it must make progress from now on.
  void Wake() {
    double resting = kResting;
    moved_.compare_exchange_strong(resting, clock_());
  }

  // Seconds since the last progress; 0 while it rests. A new heartbeat rests.
  double SilentSeconds() const {
    const double moved = moved_.load();
    return moved == kResting ? 0 : clock_() - moved;
  }

 private:
  static constexpr double kResting = -1;

  const SecondsClock clock_;
  std::atomic<double> moved_{kResting};
};

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
