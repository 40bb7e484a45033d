// StartPace: how long a group at the head of the queue waits until it starts. It is measured only
// while groups wait, since an idle or paused server shows nothing about its speed. GroupRegistry
// uses it to refuse groups that would start after their deadline.
//
// Pure: no clock, no thread. Thread-compatible. Times are seconds of one clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tandem::rollout {

class StartPace {
 public:
  // Groups wait from `now` on; none waited before.
  void BeginWaiting(double now) { since_ = now; }

  // The engine was paused until `now`; the time before does not count.
  void SkipTo(double now) { since_ = std::max(since_, now); }

  // `count` waiting groups started at `now`.
  void Started(int64_t count, double now) {
    const double each = std::max(0.0, now - since_) / static_cast<double>(count);
    const double kept = std::pow(kKept, static_cast<double>(count));
    interval_ = kept * interval_ + (1 - kept) * each;
    since_ = now;
  }

  // Seconds from one start to the next, smoothed over about five of them.
  double interval() const { return interval_; }

 private:
  static constexpr double kKept = 0.8;  // weight of the earlier measurements at each start
  double interval_ = 0.5;               // a guess until the first measurement
  double since_ = 0;                    // when the wait that is being measured began
};

}  // namespace tandem::rollout
