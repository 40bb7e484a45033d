// Overcommit: the share of a group's worst case that the scheduler reserves. Most completions stop
// early, so reserving the worst case leaves the cache half empty, while reserving what groups used
// on average risks preemption. Pure.
#pragma once

#include <algorithm>
#include <cmath>

namespace tandem::rollout {

// share = mean + 2 standard deviations of used / worst case over recent groups, at most 1; 1 until
// kGroups have been seen, and again after the cache ran out.
class Overcommit {
 public:
  static constexpr int kGroups = 16;

  void OnFinished(double used_share) {
    ++num_groups_;
    const double weight = std::max(1.0 / num_groups_, 1.0 / kMemory);
    const double difference = used_share - mean_;
    mean_ += weight * difference;
    variance_ = (1 - weight) * (variance_ + weight * difference * difference);
  }

  void OnPreempted() { *this = Overcommit(); }

  double share() const {
    return num_groups_ < kGroups ? 1.0 : std::min(1.0, mean_ + 2 * std::sqrt(variance_));
  }

 private:
  static constexpr double kMemory = 64;  // groups
  double num_groups_ = 0;
  double mean_ = 0, variance_ = 0;
};

}  // namespace tandem::rollout
