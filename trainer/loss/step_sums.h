// StepSums: what rows of a minibatch add up to, and what of it goes into the step's report. Used by
// train_step.cc.
#ifndef TANDEM_TRAINER_LOSS_STEP_SUMS_H_
#define TANDEM_TRAINER_LOSS_STEP_SUMS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "common/comm/rank_reducer.h"
#include "common/offpolicy/correction.h"
#include "trainer/experience/experience_batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/metrics/step_report.h"

namespace tandem::trainer {

// What one minibatch adds up over its microbatches before the division.
struct MinibatchSums {
  double policy = 0, kl = 0, total = 0, denominator = 0;
  LossNumbers tokens;  // the sums over tokens of it
};

// Sums of this rank's rows become those of all rows. Errors: those of the collective.
absl::Status SumOverRanks(comm::RankReducer& ranks, MinibatchSums& sums);

// The sums over tokens of `of`, and the larger of the two ratio_max.
void AddTokens(const LossNumbers& of, LossNumbers& numbers);

// One row's correction.
void AddCorrection(const offpolicy::Correction& correction, const Microbatch& micro,
                   CorrectionNumbers& numbers);

// One row's loss; `kept` [T] bool, `entropies` [T] float32.
void AddLoss(const LossSums& sums, const at::Tensor& kept, const at::Tensor& entropies,
             LossNumbers& numbers);

// Mean and variance over the completions of the batch.
void AddAdvantages(const ExperienceBatch& batch, StepReport& report);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_LOSS_STEP_SUMS_H_
