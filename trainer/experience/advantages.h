// Advantages: how much better than its group a completion was (stage 3). Pure functions of rewards,
// which are plain numbers: no gradient can flow. ScoreGroup applies them to a group that a server
// sampled; trainer.cc calls it.
#pragma once

#include <span>
#include <vector>

#include "common/options/options.h"

namespace tandem::experience::v1 {
class ScoredGroup;
}

namespace tandem::trainer {

struct Reward;

enum class AdvantageKind { kGroupNorm, kMeanOnly, kLeaveOneOut };
enum class StdConvention { kSample, kPopulation };

struct AdvantageOptions {
  AdvantageKind kind = AdvantageKind::kGroupNorm;
  StdConvention std_convention = StdConvention::kSample;
  double eps = 1e-4;
  bool drop_zero_variance = false;
};
void BindOptions(OptionBinder& binder, AdvantageOptions& options);

// Standard deviation by `convention`: sqrt(sum (x - mean)^2 / (n - 1)) for a sample, / n for a
// population. 0 for fewer than two values.
double StandardDeviation(std::span<const double> values, StdConvention convention);

// True when no two rewards differ (also for none or one).
bool AllEqual(std::span<const double> rewards);

// One number per reward of the members that count:
//   group_norm     (R - mean) / (std + eps)
//   mean_only      R - mean
//   leave_one_out  R - mean of the others
// Exactly 0 for all when all rewards are equal, and for a single member.
std::vector<float> ComputeAdvantages(std::span<const double> rewards,
                                     const AdvantageOptions& options);

// Advantages with costs[i] taken off member i (kl_reward.h): the rewards are normalised first, and
// the costs are centred as `kind` centres rewards, on the mean of the group or of the others, but
// never divided by a deviation. So a cost counts as it is given, also where all rewards are equal;
// with group_norm it is in units of the rewards' deviation. Exactly 0 for a single member.
std::vector<float> ChargedAdvantages(std::span<const double> rewards, std::span<const double> costs,
                                     const AdvantageOptions& options);

// Turns a sampled group into experience by the rewards of its completions, in order: fills reward,
// reward_parts, masked, drop_reason, advantage and zero_variance. Masked members get advantage 0
// and do not enter the group's mean or deviation.
void ScoreGroup(std::span<const Reward> rewards, const AdvantageOptions& advantages,
                experience::v1::ScoredGroup* group);

}  // namespace tandem::trainer
