// Advantages of a group: how much better than its group, or than another baseline, a completion was
// (stage 3). Pure functions of rewards, which are plain numbers: no gradient can flow. ScoreGroup
// applies them to a group that a server sampled; trainer.cc calls it. What needs the whole batch or
// a critic comes later, in batch_advantages.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "trainer/advantages/advantage_options.h"

namespace tandem::experience::v1 {
class ScoredGroup;
}

namespace tandem::trainer {

struct Reward;

// Standard deviation by `convention`: sqrt(sum (x - mean)^2 / (n - 1)) for a sample, / n for a
// population. 0 for fewer than two values.
double StandardDeviation(std::span<const double> values, StdConvention convention);

// True when no two rewards differ (also for none or one).
bool AllEqual(std::span<const double> rewards);

// What an advantage is computed from: the members of one group that count, [M] parallel.
struct GroupRewards {
  std::vector<double> rewards;
  std::vector<int64_t> lengths = {};  // tokens; read by kOptimalBaseline
  std::vector<bool> correct = {};     // read by kPassAtK
  double baseline = 0;                // reward of the greedy completion; read by kGreedyBaseline
};

// One number per member:
//   group_norm        (R - mean) / (std + eps)                 GRPO, arXiv 2402.03300
//   mean_only         R - mean                                 Dr. GRPO, arXiv 2503.20783
//   leave_one_out     R - mean of the others                   RLOO, arXiv 2402.14740
//   optimal_baseline  R - sum(length R) / sum(length)          OPO, arXiv 2505.23585
//   pass_at_k         of the best of k, see PassAtKAdvantages  arXiv 2508.10751
//   greedy_baseline   R - baseline                             ReMax, arXiv 2310.10505
//   none              R
//   best_of_n, correct_only                                    1: ScoreGroup masks the others
//   best_worst        1 and -1 for the first with the highest and the lowest reward, 0 for the
//                     others, which ScoreGroup masks; all 0 where all rewards are equal
//   gae, vtrace, retrace                                       R, until the critic has spoken
// The first four are exactly 0 for all when all rewards are equal, and for a single member.
std::vector<float> ComputeAdvantages(const GroupRewards& group, const AdvantageOptions& options);

// Pass@k training: every subset of k of the N members has reward 1 if one of it is correct. A
// member's advantage is the mean over the subsets with it, less the mean over all subsets, divided
// by the standard deviation over all subsets:
//   mean = 1 - C(N_wrong, k) / C(N, k),  deviation = sqrt(mean (1 - mean))
//   correct  (1 - mean) / deviation
//   wrong    (1 - C(N_wrong - 1, k - 1) / C(N - 1, k - 1) - mean) / deviation
// All 0 where the deviation is 0.
std::vector<float> PassAtKAdvantages(const std::vector<bool>& correct, int64_t k);

// One step of a completion that is rewarded on its own.
struct RewardedStep {
  int64_t end = 0;  // token after its last one
  double reward = 0;
};

// Advantages per token of members whose steps have rewards ([M] members, each with at least one
// step): the steps of the whole group are normalised together as `kind` (one of the first three)
// normalises rewards, and the advantage of a token is the sum of the normalised rewards of the
// steps that end after it (process supervision of DeepSeekMath, arXiv 2402.03300, section 4.1.3).
// With leave_one_out the mean is that of the other members' steps. Tokens after the last step have
// 0. One step per member, at its end, gives ComputeAdvantages' numbers.
std::vector<std::vector<float>> StepAdvantages(std::span<const std::vector<RewardedStep>> members,
                                               std::span<const int64_t> lengths,
                                               const AdvantageOptions& options);

// costs[i] as they are taken off member i's advantage (batch_advantages.h): centred as `kind`
// centres rewards, on the mean of the group or of the others, but never divided by a deviation. So
// a cost counts as it is given, also where all rewards are equal; with group_norm it is in units of
// the rewards' deviation. Kinds without a baseline of the group leave costs as they are. Exactly 0
// for a single member of a group kind.
std::vector<float> CentredCosts(std::span<const double> costs, AdvantageKind kind);

// Turns a sampled group into experience by the rewards of its completions, in order: fills reward,
// reward_parts, masked, drop_reason, advantage and zero_variance, and token_rewards, step_ends and
// token_advantages where rewards have steps. Masked members get advantage 0 and do not enter the
// group's mean or deviation. kBestOfN masks all but the best member (the first of equals),
// kCorrectOnly those that are not correct, kBestWorst all but a pair of different rewards
// (not_of_pair); without one, none: the group has zero variance then and is dropped. Of a group with a baseline the last reward is the
// baseline's; where it failed, all members are masked. steps[i] are rewards[i].steps in tokens
// (step_tokens.h); `steps` may be empty where no reward has any.
//   INVALID_ARGUMENT  step ends that do not rise, or lie outside the completion
absl::Status ScoreGroup(std::span<const Reward> rewards,
                        std::span<const std::vector<RewardedStep>> steps,
                        const AdvantageOptions& options, experience::v1::ScoredGroup* group);

}  // namespace tandem::trainer
