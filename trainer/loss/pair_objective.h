// PairObjective: the losses of preference learning on pairs that the policy itself drew (stage 7 of
// loss.kind preference). trainer/preferences/preference_loss.h has the losses; this file takes the
// log-probs of a row's pairs, and gives back what the policy loss reads: a value, and the slope of
// each token. Pure.
//
// A pair is the two trained completions of a group, of which stage 3 gave the chosen one advantage
// 1 and the rejected one -1 (advantage.kind best_worst). They are completions 2k and 2k + 1 of the
// batch, and stand in one row (PackOptions::whole_groups).
//
// Online DPO (Guo et al. 2024, arXiv 2402.04792) draws both completions from the policy pi
// that is trained, and holds the draw fixed when it differentiates the loss l of the pair:
//
//   gradient = E_{y1, y2 ~ pi} [ grad l(y1, y2) ]
//            = E_{y1, y2 ~ mu} [ pi(y1) pi(y2) / (mu(y1) mu(y2))  grad l(y1, y2) ]
//
// where pi is the proximal and mu the behaviour policy. The two are drawn independently, so that the
// weight of a pair is the product of the ratios of its two completions. It is a number without a
// gradient: the draw is held fixed. The correction library computes it with the pair as its unit:
// the sequence kinds have this product, the geometric kinds its geometric mean over the tokens of
// both. The weight may be truncated. It is exact for groups of two. The best and the worst of more
// than two depend on the other members too, whose ratios it leaves out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/weight_version.h"
#include "common/offpolicy/correction.h"
#include "common/offpolicy/policy_objective.h"
#include "trainer/experience/experience_batch.h"
#include "trainer/metrics/step_report.h"
#include "trainer/preferences/preference_loss_options.h"

namespace tandem::trainer {

// The pair of a completion, both by their number in the batch.
constexpr int64_t PairOf(int64_t completion) { return completion / 2; }

//   INVALID_ARGUMENT  (naming the group by its position) a group does not have exactly two trained
//                     completions in one row, one with advantages above 0 and one below
absl::Status CheckPairs(const ExperienceBatch& batch);

// Drops pairs of which not every trained token is kept: a sum over a part of a completion is no
// log-prob of it. Without such pairs, changes nothing.
void DropBrokenPairs(const Microbatch& micro, offpolicy::Correction& correction);

// All [T], parallel. `tokens` are those of the policy's objectives; of them, target_logprobs,
// weight, advantages, kept and completion are read. Kept tokens are those of whole pairs.
struct PairInputs {
  const offpolicy::ObjectiveInputs& tokens;
  std::span<const double> reference_logprobs;  // empty for a loss without a reference policy
  double mean_chosen_tokens = 0;  // of the minibatch's pairs; read by a loss with an NLL term
};

// The value of a pair, times its weight, stands at the first token of its chosen completion. Adds
// to `numbers`. The loss of a minibatch is the sum of the values over its number of pairs.
offpolicy::Objective ComputePairObjective(const PairInputs& inputs,
                                          const PreferenceLossOptions& options,
                                          PairNumbers& numbers);

// Scale 1 for the tokens of `counted` [T]; the denominator is the number of their pairs.
offpolicy::LossScales PairScales(std::span<const uint8_t> counted,
                                 std::span<const int32_t> completion);

// Tokens of the chosen completions of the minibatch over its pairs.
double MeanChosenTokens(const ExperienceBatch& batch, const Minibatch& mini);

// Adds the weights of a row's pairs, and how old their tokens are at `version`.
void AddPairWeights(const offpolicy::Correction& correction, const Microbatch& micro,
                    WeightVersion version, PairWeights& numbers);

}  // namespace tandem::trainer
