// Pairing: which completions of a group a judge compares, and the reward that its verdicts give.
// Pure. Used by external_parts.cc.
//
// A judge prefers the completion that it sees first, or last, for no reason (Zheng et al. 2023,
// "Judging LLM-as-a-Judge", 3.3). So each pair is asked in both orders: to win in both is worth 1,
// in one 0.5, in none 0, and a tie is half a win of its order. Pairs whose orders disagree are
// counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/rewards/external/reward_question.h"

namespace tandem::trainer {

using CompletionPair = std::pair<size_t, size_t>;  // first < second

// All pairs of `n` completions. With `opponents` below n - 1, each completion gets exactly that
// many (one more where both numbers are odd): it is compared with its neighbours on a ring whose
// order is drawn from `seed`.
std::vector<CompletionPair> MakePairs(size_t n, int64_t opponents, uint64_t seed);

// Two questions per pair, in order: the first of the pair shown as a, then as b.
std::vector<RewardQuestion> PairQuestions(const std::shared_ptr<const HeldGroup>& group,
                                          const std::vector<CompletionPair>& pairs);

struct PairwiseRewards {
  std::vector<RewardAnswer> answers;  // by completion: the mean over its opponents
  int64_t num_judged = 0;             // pairs with a verdict in both orders
  int64_t num_disagreements = 0;      // of them
};

// `verdicts`: of PairQuestions; 1 where a is better. A pair without both verdicts counts for
// neither. A completion without any pair that counts has the error of one of its verdicts. The one
// completion of a group of one has 0.5: nobody is better or worse.
PairwiseRewards ScorePairs(size_t n, const std::vector<CompletionPair>& pairs,
                           const std::vector<RewardAnswer>& verdicts);

}  // namespace tandem::trainer
