#include "trainer/experience/advantages.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/statistics/sample_statistics.h"
#include "proto/experience.pb.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {

namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

void SetRewards(std::span<const Reward> rewards, ScoredGroup* group) {
  for (size_t i = 0; i < rewards.size(); ++i) {
    ScoredCompletion* const member = group->mutable_completions(static_cast<int>(i));
    member->set_reward(rewards[i].value);
    member->set_correct(rewards[i].correct);
    member->set_masked(!rewards[i].mask_reason.empty());
    member->set_drop_reason(rewards[i].mask_reason);
    for (const auto& [name, value] : rewards[i].parts)
      (*member->mutable_reward_parts())[name] = value;
  }
}

}  // namespace

void BindOptions(OptionBinder& binder, AdvantageOptions& options) {
  binder.Choice("kind", &options.kind,
                {{"group_norm", AdvantageKind::kGroupNorm},
                 {"mean_only", AdvantageKind::kMeanOnly},
                 {"leave_one_out", AdvantageKind::kLeaveOneOut}},
                "(R - mean) / (std + eps), R - mean, or R - mean of the other members");
  binder.Choice("std", &options.std_convention,
                {{"sample", StdConvention::kSample}, {"population", StdConvention::kPopulation}},
                "divide the squared deviations by G - 1 or by G");
  binder.Number("eps", &options.eps, {.min = 0}, "", "added to the standard deviation");
  binder.Flag(
      "drop_zero_variance", &options.drop_zero_variance,
      "leave groups of equal rewards out of the batch; rewards and lengths are measured over "
      "them either way");
}

double StandardDeviation(std::span<const double> values, StdConvention convention) {
  if (values.size() < 2) return 0;
  const double n = static_cast<double>(values.size());
  return std::sqrt(offpolicy::SquaredDeviations(values) /
                   (convention == StdConvention::kSample ? n - 1 : n));
}

bool AllEqual(std::span<const double> rewards) {
  return std::ranges::adjacent_find(rewards, std::ranges::not_equal_to()) == rewards.end();
}

std::vector<float> ComputeAdvantages(std::span<const double> rewards,
                                     const AdvantageOptions& options) {
  std::vector<float> advantages(rewards.size(), 0.0f);
  if (AllEqual(rewards)) return advantages;
  const double n = static_cast<double>(rewards.size());
  const double mean = offpolicy::Mean(rewards);
  const double std = StandardDeviation(rewards, options.std_convention);
  for (size_t i = 0; i < rewards.size(); ++i) {
    double advantage = rewards[i] - mean;
    if (options.kind == AdvantageKind::kGroupNorm) advantage /= std + options.eps;
    // R - (sum - R) / (n - 1) = (R - mean) * n / (n - 1)
    if (options.kind == AdvantageKind::kLeaveOneOut) advantage *= n / (n - 1);
    advantages[i] = static_cast<float>(advantage);
  }
  return advantages;
}

std::vector<float> ChargedAdvantages(std::span<const double> rewards, std::span<const double> costs,
                                     const AdvantageOptions& options) {
  std::vector<float> advantages = ComputeAdvantages(rewards, options);
  AdvantageOptions centring = options;
  if (options.kind == AdvantageKind::kGroupNorm) centring.kind = AdvantageKind::kMeanOnly;
  const std::vector<float> charges = ComputeAdvantages(costs, centring);
  for (size_t i = 0; i < advantages.size(); ++i) advantages[i] -= charges[i];
  return advantages;
}

void ScoreGroup(std::span<const Reward> rewards, const AdvantageOptions& options,
                ScoredGroup* group) {
  SetRewards(rewards, group);
  std::vector<double> counted;
  for (const ScoredCompletion& member : group->completions()) {
    if (!member.masked()) counted.push_back(member.reward());
  }
  const std::vector<float> advantages = ComputeAdvantages(counted, options);
  group->set_zero_variance(AllEqual(counted));
  size_t next = 0;
  for (ScoredCompletion& member : *group->mutable_completions()) {
    member.set_advantage(member.masked() ? 0 : advantages[next++]);
  }
}

}  // namespace tandem::trainer
