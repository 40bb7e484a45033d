// Sums over the rows of a minibatch, over the ranks, and from there into the report of the train
// step. Used by train_step.cc.
//
// The loss of a minibatch is a ratio of two sums over its tokens, and every number of the report is
// too. The rows are spread over microbatches and over ranks, so each of them adds to the numerator
// and to the denominator, and the division comes once, at the end. Dividing within a row or a rank
// and averaging the results would weigh tokens by the size of the row that they are packed into,
// and the update would change with the number of ranks. All sums are in double.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "common/comm/rank_reducer.h"
#include "common/offpolicy/correction.h"
#include "trainer/experience/experience_batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/metrics/step_report.h"

namespace tandem::trainer {

// The sums of one minibatch over this rank's rows, before the division by `denominator`, become the
// sums over all rows. Errors: those of the collective.
absl::Status SumOverRanks(comm::RankReducer& ranks, LossNumbers& sums);

// Adds the sums over tokens; ratio_max becomes the larger of the two.
void AddTokens(const LossNumbers& added, LossNumbers& numbers);

// Adds the correction of one row.
void AddCorrection(const offpolicy::Correction& correction, const Microbatch& micro,
                   CorrectionNumbers& numbers);

// Adds the loss of one row; `kept` [T] bool, `entropies` [T] float32.
void AddLoss(const LossSums& sums, const at::Tensor& kept, const at::Tensor& entropies,
             LossNumbers& numbers);

// Adds the mean and variance of the advantages over the completions of the batch.
void AddAdvantages(const ExperienceBatch& batch, StepReport& report);

}  // namespace tandem::trainer
