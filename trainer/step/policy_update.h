// PolicyUpdate: stages 6 to 8 for one batch: per microbatch the target log-probs, the correction,
// the loss and its gradient; per minibatch one update of the policy. Used by train_step.cc, which
// makes one for each train step.
//
// An update is not made when its minibatch has no kept token, or no finite loss or gradient.
// Weights, moments and the optimizer's count of updates stay as they were.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/offpolicy/policy_objective.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/loss/step_sums.h"
#include "trainer/step/batch_scores.h"

namespace tandem::trainer {

class PolicyUpdate {
 public:
  // All must outlive this object. `scores` gets the proximal log-probs of the first minibatch.
  PolicyUpdate(StepModels& models, const TrainStepOptions& options, RowPasses& passes,
               BatchScores& scores, StepReport& report);

  // Gradients of one minibatch, and with them an update, unless its mean KL(proximal || target) is
  // over options.target_kl: then false, and the weights stay as they are.
  absl::StatusOr<bool> Train(const Minibatch& mini);

  // Adds the correction of the rows to the report, once each.
  absl::Status ReportCorrection(const Minibatch& mini);

 private:
  absl::StatusOr<LossNumbers> AccumulateGradients(const Minibatch& mini);
  absl::Status AccumulateRow(size_t row, LossNumbers& minibatch);
  absl::Status PoolSecondMoments(const Minibatch& mini);
  offpolicy::LossScales ScalesOf(const Microbatch& micro,
                                 const offpolicy::Correction& correction) const;
  LossInputs MakeLossInputs(size_t row, const offpolicy::Correction& correction) const;
  absl::Status Update(const LossNumbers& sums);
  absl::StatusOr<OptimizerUpdate> UpdateMasters(double grad_scale);
  void ZeroGrads();

  StepModels& models_;
  const TrainStepOptions& options_;
  RowPasses& passes_;
  const ExperienceBatch& batch_;
  BatchScores& scores_;
  StepReport& report_;
  std::vector<bool> seen_;    // whether the report has the row's correction
  CriticNumbers own_critic_;  // of this rank's rows of the minibatch, where the head is trained too
  std::optional<double> second_moment_cutoff_;  // m2po: of a minibatch of several microbatches
  double mean_chosen_tokens_ = 0;               // preference: of the minibatch
};

}  // namespace tandem::trainer
