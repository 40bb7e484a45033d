// StartPace: how long a group at the head of the queue waits until it starts. Measured only while
// groups wait: an idle server, or one that is paused, says nothing about how fast it would be. Used
// by GroupRegistry to refuse what would start after its deadline.
//
// Pure: no clock, no thread. Thread-compatible. Times are seconds of one clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tandem::rollout {

class StartPace {
 public:
  // Groups wait from `now` on, and none did before.
  void BeginWaiting(double now) { since_ = now; }

  // The engine did not serve until `now`: what was waited until then does not count.
  void SkipTo(double now) { since_ = std::max(since_, now); }

  // `count` groups that waited started at `now`. Those that still wait do so for the next ones.
  void Started(int64_t count, double now) {
    const double each = std::max(0.0, now - since_) / static_cast<double>(count);
    const double kept = std::pow(kKept, static_cast<double>(count));
    interval_ = kept * interval_ + (1 - kept) * each;
    since_ = now;
  }

  // Seconds from one start to the next, smoothed over about five of them.
  double interval() const { return interval_; }

 private:
  static constexpr double kKept = 0.8;  // of what was measured before, at each start
  double interval_ = 0.5;               // before anything was measured
  double since_ = 0;                    // when the wait that is measured now began
};

}  // namespace tandem::rollout
