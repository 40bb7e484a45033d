#include "trainer/advantages/group_advantages.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/statistics/sample_statistics.h"
#include "proto/experience.pb.h"
#include "trainer/experience/drawn_tokens.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {

namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

std::vector<float> ToFloats(std::span<const double> values) {
  return {values.begin(), values.end()};
}

double LengthWeightedMean(const GroupRewards& group) {
  TANDEM_CHECK(group.lengths.size() == group.rewards.size());
  double sum = 0, tokens = 0;
  for (size_t i = 0; i < group.rewards.size(); ++i) {
    sum += static_cast<double>(group.lengths[i]) * group.rewards[i];
    tokens += static_cast<double>(group.lengths[i]);
  }
  return sum / tokens;
}

// C(n - taken, k) / C(n, k): the share of subsets of k that avoid `taken` of n.
double ShareAvoiding(int64_t n, int64_t taken, int64_t k) {
  double share = 1;
  for (int64_t i = 0; i < k; ++i) {
    share *= static_cast<double>(std::max<int64_t>(0, n - taken - i)) / static_cast<double>(n - i);
  }
  return share;
}

// The kinds that compare a completion with the others of its group by their rewards alone.
std::vector<float> CentredAdvantages(std::span<const double> rewards,
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

std::vector<float> LessBaseline(std::span<const double> rewards, double baseline) {
  std::vector<float> advantages;
  for (const double reward : rewards) advantages.push_back(static_cast<float>(reward - baseline));
  return advantages;
}

// What the reward says; masked where it masks.
void SetReward(const Reward& reward, ScoredCompletion* member) {
  member->set_reward(reward.value);
  member->set_correct(reward.correct);
  if (reward.gold.has_value()) member->set_gold(*reward.gold);
  member->set_masked(!reward.mask_reason.empty());
  member->set_drop_reason(reward.mask_reason);
  for (const auto& [name, value] : reward.parts) (*member->mutable_reward_parts())[name] = value;
}

// Without its reward nothing can be compared with the baseline.
void SetBaseline(const Reward& reward, ScoredGroup* group) {
  ScoredCompletion* const baseline = group->mutable_baseline();
  SetReward(reward, baseline);
  double sum = reward.value;
  for (const StepReward& step : reward.steps) sum += step.value;
  for (const double of_token : reward.token_rewards) sum += of_token;
  baseline->set_reward(sum);
  baseline->set_masked(true);
  if (!IsRewardFailure(reward.mask_reason)) return;
  for (ScoredCompletion& member : *group->mutable_completions()) {
    if (member.masked()) continue;
    member.set_masked(true);
    member.set_drop_reason("baseline_" + reward.mask_reason);
  }
}

// Adds the steps' rewards to the completion's: the text after the last step belongs to that step,
// so that it ends with the completion, and the reward of the whole comes with it.
absl::Status SetSteps(std::span<const RewardedStep> steps, ScoredCompletion* member) {
  const int64_t length = member->completion().token_ids_size();
  const std::vector<int32_t> turns = TurnsOf(member->completion());
  std::vector<double> token_rewards(static_cast<size_t>(length));
  double sum = member->reward();
  int64_t before = 0;
  for (const RewardedStep& step : steps) {
    const int64_t stated = &step == &steps.back() ? length : step.end;
    const int64_t end = stated > length ? stated : EndDrawn(turns, stated);
    if (end == before && end != stated) {  // another part of what was given after the same turn
      token_rewards[static_cast<size_t>(end - 1)] += step.reward;
      sum += step.reward;
      continue;
    }
    if (end <= before || end > length) {
      return InvalidArgument("completion ", member->completion().index(),
                             ": a step of its reward ends at token ", step.end, " of ", length,
                             ", after one that ended at ", before);
    }
    token_rewards[static_cast<size_t>(end - 1)] += step.reward;
    member->add_step_ends(static_cast<int32_t>(end));
    sum += step.reward;
    before = end;
  }
  token_rewards.back() += member->reward();
  member->mutable_token_rewards()->Add(token_rewards.begin(), token_rewards.end());
  member->set_reward(sum);
  return absl::OkStatus();
}

void Mask(const char* reason, ScoredCompletion* member) {
  member->set_masked(true);
  member->set_drop_reason(reason);
}

// 1 for the first of the highest rewards, -1 for the first of the lowest.
std::vector<float> PairAdvantages(std::span<const double> rewards) {
  std::vector<float> advantages(rewards.size(), 0.0f);
  if (AllEqual(rewards)) return advantages;
  advantages[static_cast<size_t>(std::ranges::max_element(rewards) - rewards.begin())] = 1;
  advantages[static_cast<size_t>(std::ranges::min_element(rewards) - rewards.begin())] = -1;
  return advantages;
}

// Leaves the best and the worst member, where their rewards differ.
void MaskOutsidePair(ScoredGroup* group) {
  std::vector<ScoredCompletion*> members;
  std::vector<double> rewards;
  for (ScoredCompletion& member : *group->mutable_completions()) {
    if (member.masked()) continue;
    members.push_back(&member);
    rewards.push_back(member.reward());
  }
  if (AllEqual(rewards)) return;
  const std::vector<float> advantages = PairAdvantages(rewards);
  for (size_t i = 0; i < members.size(); ++i) {
    if (advantages[i] == 0) Mask("not_of_pair", members[i]);
  }
}

// Imitation and pairs: which members are left.
void MaskByKind(AdvantageKind kind, ScoredGroup* group) {
  if (MakesPairs(kind)) MaskOutsidePair(group);
  if (kind == AdvantageKind::kCorrectOnly) {
    for (ScoredCompletion& member : *group->mutable_completions()) {
      if (!member.masked() && !member.correct()) Mask("not_correct", &member);
    }
  }
  if (kind != AdvantageKind::kBestOfN) return;
  const ScoredCompletion* best = nullptr;
  for (const ScoredCompletion& member : group->completions()) {
    if (member.masked()) continue;
    if (best == nullptr || member.reward() > best->reward()) best = &member;
  }
  for (ScoredCompletion& member : *group->mutable_completions()) {
    if (!member.masked() && &member != best) Mask("not_best", &member);
  }
}

// The members that are not masked.
std::vector<ScoredCompletion*> Counted(ScoredGroup* group) {
  std::vector<ScoredCompletion*> counted;
  for (ScoredCompletion& member : *group->mutable_completions()) {
    member.set_advantage(0);
    if (!member.masked()) counted.push_back(&member);
  }
  return counted;
}

GroupRewards RewardsOf(std::span<ScoredCompletion* const> members, const ScoredGroup& group) {
  GroupRewards result{.baseline = group.baseline().reward()};
  for (const ScoredCompletion* const member : members) {
    result.rewards.push_back(member->reward());
    result.lengths.push_back(NumDrawn(member->completion()));
    result.correct.push_back(member->correct());
  }
  return result;
}

bool NormalisesSteps(AdvantageKind kind) { return kind <= AdvantageKind::kLeaveOneOut; }

// A completion without steps, in a group that has some, is one step.
std::vector<RewardedStep> StepsOf(const ScoredCompletion& member) {
  std::vector<RewardedStep> steps;
  for (const int32_t end : member.step_ends()) {
    steps.push_back({end, member.token_rewards(end - 1)});
  }
  if (steps.empty()) steps.push_back({member.completion().token_ids_size(), member.reward()});
  return steps;
}

void SetStepAdvantages(std::span<ScoredCompletion* const> members,
                       const AdvantageOptions& options) {
  std::vector<std::vector<RewardedStep>> steps;
  std::vector<int64_t> lengths;  // given tokens included, as the ends of steps are
  for (const ScoredCompletion* const member : members) {
    steps.push_back(StepsOf(*member));
    lengths.push_back(member->completion().token_ids_size());
  }
  const auto advantages = StepAdvantages(steps, lengths, options);
  for (size_t i = 0; i < members.size(); ++i) {
    const std::vector<int32_t> turns = TurnsOf(members[i]->completion());
    std::vector<double> values;  // of drawn tokens
    for (size_t t = 0; t < advantages[i].size(); ++t) {
      members[i]->add_token_advantages(turns[t] == 0 ? 0 : advantages[i][t]);
      if (turns[t] != 0) values.push_back(advantages[i][t]);
    }
    members[i]->set_advantage(static_cast<float>(offpolicy::Mean(values)));
  }
}

}  // namespace

double StandardDeviation(std::span<const double> values, StdConvention convention) {
  if (values.size() < 2) return 0;
  const double n = static_cast<double>(values.size());
  return std::sqrt(offpolicy::SquaredDeviations(values) /
                   (convention == StdConvention::kSample ? n - 1 : n));
}

bool AllEqual(std::span<const double> rewards) {
  return std::ranges::adjacent_find(rewards, std::ranges::not_equal_to()) == rewards.end();
}

std::vector<float> ComputeAdvantages(const GroupRewards& group, const AdvantageOptions& options) {
  switch (options.kind) {
    case AdvantageKind::kGroupNorm:
    case AdvantageKind::kMeanOnly:
    case AdvantageKind::kLeaveOneOut:
      return CentredAdvantages(group.rewards, options);
    case AdvantageKind::kOptimalBaseline:
      if (AllEqual(group.rewards)) return std::vector<float>(group.rewards.size());
      return LessBaseline(group.rewards, LengthWeightedMean(group));
    case AdvantageKind::kPassAtK:
      return PassAtKAdvantages(group.correct, options.pass_k);
    case AdvantageKind::kGreedyBaseline:
      return LessBaseline(group.rewards, group.baseline);
    case AdvantageKind::kBestOfN:
    case AdvantageKind::kCorrectOnly:
      return std::vector<float>(group.rewards.size(), 1.0f);
    case AdvantageKind::kBestWorst:
      return PairAdvantages(group.rewards);
    case AdvantageKind::kNone:
    case AdvantageKind::kGae:
    case AdvantageKind::kVtrace:
    case AdvantageKind::kRetrace:
      break;
  }
  return ToFloats(group.rewards);
}

std::vector<float> PassAtKAdvantages(const std::vector<bool>& correct, int64_t k) {
  const auto n = static_cast<int64_t>(correct.size());
  const int64_t subset = std::min(k, n);
  const int64_t num_correct = std::ranges::count(correct, true);
  const double mean = 1 - ShareAvoiding(n, num_correct, subset);
  const double deviation = std::sqrt(mean * (1 - mean));
  std::vector<float> advantages(correct.size());
  if (deviation == 0) return advantages;
  // Subsets with one given wrong member choose the other k - 1 among n - 1.
  const double of_wrong = 1 - ShareAvoiding(n - 1, num_correct, subset - 1);
  for (size_t i = 0; i < correct.size(); ++i) {
    advantages[i] = static_cast<float>(((correct[i] ? 1 : of_wrong) - mean) / deviation);
  }
  return advantages;
}

std::vector<std::vector<float>> StepAdvantages(std::span<const std::vector<RewardedStep>> members,
                                               std::span<const int64_t> lengths,
                                               const AdvantageOptions& options) {
  TANDEM_CHECK(NormalisesSteps(options.kind) && members.size() == lengths.size());
  std::vector<double> all;
  for (const auto& steps : members) {
    for (const RewardedStep& step : steps) all.push_back(step.reward);
  }
  const bool equal = AllEqual(all);
  const double total = std::accumulate(all.begin(), all.end(), 0.0);
  const double std = StandardDeviation(all, options.std_convention);
  std::vector<std::vector<float>> advantages;
  for (size_t i = 0; i < members.size(); ++i) {
    double mean = offpolicy::Mean(all, 0);
    if (options.kind == AdvantageKind::kLeaveOneOut) {
      double own = 0;
      for (const RewardedStep& step : members[i]) own += step.reward;
      const auto others = static_cast<double>(all.size() - members[i].size());
      mean = others == 0 ? own / static_cast<double>(members[i].size()) : (total - own) / others;
    }
    std::vector<float>& tokens = advantages.emplace_back(static_cast<size_t>(lengths[i]), 0.0f);
    if (equal) continue;
    double sum = 0;
    for (size_t k = members[i].size(); k-- > 0;) {
      double normalised = members[i][k].reward - mean;
      if (options.kind == AdvantageKind::kGroupNorm) normalised /= std + options.eps;
      sum += normalised;
      const int64_t begin = k == 0 ? 0 : members[i][k - 1].end;
      std::fill(tokens.begin() + begin, tokens.begin() + members[i][k].end,
                static_cast<float>(sum));
    }
  }
  return advantages;
}

std::vector<float> CentredCosts(std::span<const double> costs, AdvantageKind kind) {
  AdvantageOptions centring{.kind = kind};
  switch (kind) {
    case AdvantageKind::kGroupNorm:
    case AdvantageKind::kOptimalBaseline:
    case AdvantageKind::kPassAtK:
      centring.kind = AdvantageKind::kMeanOnly;
      break;
    case AdvantageKind::kMeanOnly:
    case AdvantageKind::kLeaveOneOut:
      break;
    default:
      return ToFloats(costs);
  }
  return CentredAdvantages(costs, centring);
}

absl::Status ScoreGroup(std::span<const Reward> rewards,
                        std::span<const std::vector<RewardedStep>> steps,
                        const AdvantageOptions& options, ScoredGroup* group) {
  const auto num_members = static_cast<size_t>(group->completions_size());
  TANDEM_CHECK(rewards.size() == num_members + (group->has_baseline() ? 1 : 0));
  bool has_steps = false;
  for (size_t i = 0; i < num_members; ++i) {
    ScoredCompletion* const member = group->mutable_completions(static_cast<int>(i));
    SetReward(rewards[i], member);
    if (i >= steps.size() || steps[i].empty()) continue;
    has_steps = true;
    TANDEM_RETURN_IF_ERROR(SetSteps(steps[i], member));
  }
  if (group->has_baseline()) SetBaseline(rewards.back(), group);
  GroupRewards counted = RewardsOf(Counted(group), *group);
  group->set_zero_variance(AllEqual(counted.rewards));
  MaskByKind(options.kind, group);
  const std::vector<ScoredCompletion*> members = Counted(group);
  counted = RewardsOf(members, *group);
  if (has_steps && NormalisesSteps(options.kind)) {
    SetStepAdvantages(members, options);
    return absl::OkStatus();
  }
  const std::vector<float> advantages = ComputeAdvantages(counted, options);
  for (size_t i = 0; i < members.size(); ++i) members[i]->set_advantage(advantages[i]);
  return absl::OkStatus();
}

}  // namespace tandem::trainer
