// BatchScores: what is known of a batch before the first update (stage 5, and stage 6 as far as it
// needs the whole batch): log-probs of the proximal and the reference policy, the critic's values,
// and advantages that depend on them. Used by train_step.cc.
//
// The proximal policy is the target policy before the first update. For the first minibatch its
// log-probs are the detached target ones, and no pass is made for them unless something needs the
// whole batch: KL in the reward, a critic, or batch_normalise.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/advantages/batch_advantages.h"
#include "trainer/critic/critic.h"
#include "trainer/loss/correction_tensors.h"
#include "trainer/optimizer/row_passes.h"
#include "trainer/step/step_models.h"
#include "trainer/train_step_options.h"

namespace tandem::trainer {

// Vectors are by microbatch.
struct BatchScores {
  std::vector<at::Tensor> proximal;   // [T] each; undefined until known
  std::vector<at::Tensor> reference;  // [T] each; undefined without a reference
  BatchValues values;                 // without a critic: empty
  std::vector<std::vector<float>> value_targets;
  double weight_divisor = 0;  // batch_normalise: mean weight of the batch; 0: not divided
};

// What the batch is scored for, beside the options of the step.
struct ScoringOptions {
  const TrainStepOptions& step;
  const AdvantageOptions& advantage;
  KlInReward kl;
};

// Makes the passes over `passes.batch()`, which is `batch`, and replaces its advantages where they
// depend on log-probs or values. Adds to `report`. Errors: those of the passes.
absl::StatusOr<BatchScores> ScoreBatch(StepModels& models, const ScoringOptions& options,
                                       RowPasses& passes, ExperienceBatch& batch,
                                       StepReport& report);

// Log-probs of this rank's `rows`; `options` asks for no gradient.
absl::Status ScoreRows(PlacedPolicy& model, const PassOptions& options, const Minibatch& rows,
                       RowPasses& passes, std::vector<at::Tensor>& logprobs);

// Stage 6 for one row, before it is divided by the batch's mean weight. With loss.kind preference
// the unit of the correction is the pair, which is kept whole or not at all.
absl::StatusOr<offpolicy::Correction> CorrectRow(const Microbatch& micro,
                                                 const at::Tensor& proximal,
                                                 const TrainStepOptions& options);

}  // namespace tandem::trainer
