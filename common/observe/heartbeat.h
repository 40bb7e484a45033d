// Heartbeat: detects that a thread is stuck. The thread beats while it works and rests while it has
// nothing to do; a watcher asks how long it has been silent. Thread-safe.
#ifndef TANDEM_COMMON_OBSERVE_HEARTBEAT_H_
#define TANDEM_COMMON_OBSERVE_HEARTBEAT_H_

#include <atomic>
#include <utility>

#include "common/base/clock.h"

namespace tandem {

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

}  // namespace tandem

#endif  // TANDEM_COMMON_OBSERVE_HEARTBEAT_H_
