#include "trainer/step/policy_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/offpolicy/correction.h"
#include "common/offpolicy/policy_objective.h"
#include "common/tensor/torch_status.h"
#include "trainer/loss/pair_objective.h"

namespace tandem::trainer {
namespace {

using offpolicy::Correction;

template <typename T>
at::Tensor CopyOf(const std::vector<T>& values, at::ScalarType dtype) {
  at::Tensor result = at::empty({static_cast<int64_t>(values.size())}, dtype);
  std::memcpy(result.data_ptr(), values.data(), values.size() * sizeof(T));
  return result;
}

}  // namespace

PolicyUpdate::PolicyUpdate(StepModels& models, const TrainStepOptions& options, RowPasses& passes,
                           BatchScores& scores, StepReport& report)
    : models_(models),
      options_(options),
      passes_(passes),
      batch_(passes.batch()),
      scores_(scores),
      report_(report),
      seen_(batch_.microbatches.size()) {}

// Which tokens m2po drops or clips depends on the target log-probs of the whole minibatch. So it
// needs another pass, unless the minibatch is one microbatch.
absl::Status PolicyUpdate::PoolSecondMoments(const Minibatch& mini) {
  const offpolicy::ObjectiveOptions& objective = options_.loss.objective;
  if (!offpolicy::IsM2po(objective.kind) || mini.end - mini.begin == 1) {
    second_moment_cutoff_.reset();
    return absl::OkStatus();
  }
  std::vector<double> squares;
  std::vector<at::Tensor> target(batch_.microbatches.size());
  TANDEM_RETURN_IF_ERROR(
      ScoreRows(*models_.policy, {.temperature = models_.temperature}, mini, passes_, target));
  TANDEM_RETURN_IF_ERROR(passes_.Share(mini, target));
  for (auto m = static_cast<size_t>(mini.begin); m < static_cast<size_t>(mini.end); ++m) {
    if (!scores_.proximal[m].defined()) scores_.proximal[m] = target[m];
    TANDEM_ASSIGN_OR_RETURN(const Correction correction,
                            CorrectRow(batch_.microbatches[m], scores_.proximal[m], options_));
    LossInputs inputs = MakeLossInputs(m, correction);
    inputs.target_logprobs = target[m];
    AppendSecondMoments(inputs, squares);
  }
  second_moment_cutoff_ = offpolicy::SecondMomentCutoff(std::move(squares), objective);
  return absl::OkStatus();
}

absl::StatusOr<LossNumbers> PolicyUpdate::AccumulateGradients(const Minibatch& mini) {
  TANDEM_RETURN_IF_ERROR(PoolSecondMoments(mini));
  if (ReadsPairs(options_.loss)) mean_chosen_tokens_ = MeanChosenTokens(batch_, mini);
  LossNumbers sums;
  own_critic_ = {};
  TANDEM_RETURN_IF_ERROR(
      passes_.Train(*models_.policy, mini, [&](size_t row) { return AccumulateRow(row, sums); }));
  const double computed = MonotonicSeconds();
  TANDEM_RETURN_IF_ERROR(models_.policy->buckets().FinishGradients());
  if (models_.trains_head_with_policy()) {
    TANDEM_RETURN_IF_ERROR(models_.critic->head().SumGradients(models_.ranks));
    TANDEM_RETURN_IF_ERROR(AddOverRanks(models_.ranks, own_critic_, *report_.critic));
  }
  report_.times.gradient_sum_wait_s += MonotonicSeconds() - computed;
  TANDEM_RETURN_IF_ERROR(SumOverRanks(models_.ranks, sums));
  AddTokens(sums, report_.loss);
  if (!seen_[static_cast<size_t>(mini.begin)]) {
    TANDEM_RETURN_IF_ERROR(passes_.Share(mini, scores_.proximal));
    TANDEM_RETURN_IF_ERROR(ReportCorrection(mini));
  }
  return sums;
}

absl::Status PolicyUpdate::ReportCorrection(const Minibatch& mini) {
  for (auto m = static_cast<size_t>(mini.begin); m < static_cast<size_t>(mini.end); ++m) {
    if (seen_[m]) continue;
    seen_[m] = true;
    TANDEM_ASSIGN_OR_RETURN(const Correction correction,
                            CorrectRow(batch_.microbatches[m], scores_.proximal[m], options_));
    AddCorrection(correction, batch_.microbatches[m], report_.correction);
  }
  return absl::OkStatus();
}

// The inputs of the loss except what the target policy's pass gives, and the scale.
LossInputs PolicyUpdate::MakeLossInputs(size_t row, const Correction& correction) const {
  const Microbatch& micro = batch_.microbatches[row];
  const CorrectionTensors tensors = MakeTensors(correction);
  return {.start_logprobs = scores_.proximal[row],
          .proximal_logprobs = tensors.proximal_logprobs,
          .weight = tensors.weight,
          .advantages = CopyOf(micro.advantages, at::kFloat),
          .reference_logprobs = scores_.reference[row],
          .kept = tensors.kept,
          .completion = CopyOf(micro.completion, at::kInt).to(at::kLong),
          .second_moment_cutoff = second_moment_cutoff_,
          .mean_chosen_tokens = mean_chosen_tokens_};
}

offpolicy::LossScales PolicyUpdate::ScalesOf(const Microbatch& micro,
                                             const Correction& correction) const {
  const bool all = options_.correction.denominator == offpolicy::DenominatorKind::kAll;
  const std::vector<uint8_t>& counted = all ? micro.loss_mask : correction.kept;
  if (ReadsPairs(options_.loss)) return PairScales(counted, micro.completion);
  const std::vector<int64_t> completion(micro.completion.begin(), micro.completion.end());
  return offpolicy::ComputeLossScales(counted, completion, micro.num_completions,
                                      options_.loss.objective);
}

// Stages 5 to 7 for one row: adds its part of the loss and of the gradient, before the division.
absl::Status PolicyUpdate::AccumulateRow(size_t row, LossNumbers& minibatch) {
  const Microbatch& micro = batch_.microbatches[row];
  PassOptions pass = {.temperature = models_.temperature,
                      .with_gradient = true,
                      .entropy_gradient = options_.loss.entropy_coefficient > 0};
  if (models_.dropout_seed != 0) {
    pass.lora.dropout_seed =
        StableHash(
            {models_.dropout_seed, static_cast<uint64_t>(models_.optimizer->num_updates()), row}) |
        1;
  }
  const bool with_head = models_.trains_head_with_policy();
  if (with_head) pass.hidden_at = FindValuePlaces(batch_, row).hidden_at;
  TANDEM_ASSIGN_OR_RETURN(const TokenScores target, models_.policy->Run(micro.row, pass));
  at::Tensor& proximal = scores_.proximal[row];
  if (!proximal.defined()) proximal = target.logprobs.detach().clone();
  TANDEM_ASSIGN_OR_RETURN(Correction correction, CorrectRow(micro, proximal, options_));
  offpolicy::DivideWeights(scores_.weight_divisor, correction);
  const offpolicy::LossScales scales = ScalesOf(micro, correction);
  return CatchTorch("policy loss", [&] {
    LossInputs inputs = MakeLossInputs(row, correction);
    inputs.target_logprobs = target.logprobs;
    inputs.entropies = target.entropies;
    inputs.scale = ToFloatTensor(scales.scale);
    const LossSums sums = SumPolicyLoss(inputs, options_.loss);
    at::Tensor total = sums.total;
    if (with_head) {
      const at::Tensor of_values =
          models_.critic->RowLoss(batch_, row, target.hidden, scores_.values,
                                  scores_.value_targets[row], scales.scale, own_critic_);
      total = total + of_values.to(at::kCPU);
    }
    total.backward();
    minibatch.policy += sums.policy.item<double>();
    minibatch.kl += options_.loss.kl_coefficient * sums.kl.item<double>();
    minibatch.total += total.item<double>();
    minibatch.denominator += scales.denominator;
    AddLoss(sums, inputs.kept, target.entropies, minibatch);
  });
}

// Each rank updates its slices of the masters; the gradient norm is that of all ranks.
absl::StatusOr<OptimizerUpdate> PolicyUpdate::UpdateMasters(double grad_scale) {
  AdamW& optimizer = *models_.optimizer;
  TANDEM_ASSIGN_OR_RETURN(const double own, CatchTorch("norm of gradients", [&] {
                            return optimizer.SquaredGradNorm();
                          }));
  TANDEM_ASSIGN_OR_RETURN(double squares, models_.ranks.SumInOrder(own));
  const bool with_head = models_.trains_head_with_policy();
  if (with_head) squares += models_.critic->head().SquaredGradNorm();
  TANDEM_ASSIGN_OR_RETURN(const OptimizerUpdate update, CatchTorch("optimizer", [&] {
                            if (with_head) models_.critic->head().Step(squares, grad_scale);
                            return optimizer.Step(squares, grad_scale);
                          }));
  if (!update.skipped) TANDEM_RETURN_IF_ERROR(models_.policy->buckets().ShareMasters());
  return update;
}

void PolicyUpdate::ZeroGrads() {
  models_.optimizer->ZeroGrads();
  if (models_.trains_head_with_policy()) models_.critic->head().ZeroGrads();
}

// Stage 8, unless the minibatch has no kept token or no finite loss.
absl::Status PolicyUpdate::Update(const LossNumbers& sums) {
  LossNumbers& loss = report_.loss;
  ++loss.num_updates;
  std::string reason;
  if (sums.num_tokens == 0) {  // whatever the denominator counts
    reason = "every token of the minibatch was refused by the correction";
  } else if (!std::isfinite(sums.total)) {
    reason = absl::StrCat("the loss is ", sums.total);
  } else {
    TANDEM_ASSIGN_OR_RETURN(const OptimizerUpdate update, UpdateMasters(1 / sums.denominator));
    report_.optimizer.learning_rate = update.learning_rate;
    report_.optimizer.grad_norm = update.grad_norm;
    report_.optimizer.grad_clipped = update.clipped;
    if (update.skipped) reason = absl::StrCat("the gradient norm is ", update.grad_norm);
  }
  if (models_.trains_head_with_policy()) {
    ++report_.critic->num_updates;
    report_.critic->skipped_updates += !reason.empty();
    report_.critic->grad_norm = report_.optimizer.grad_norm;
    report_.critic->learning_rate =
        LearningRate(options_.critic.optimizer, models_.critic->num_updates() - 1);
  }
  const double denominator = sums.denominator == 0 ? 1 : sums.denominator;
  loss.policy += sums.policy / denominator;
  loss.kl += sums.kl / denominator;
  loss.total += sums.total / denominator;
  loss.denominator += sums.denominator;
  if (reason.empty()) {
    models_.policy->policy().WeightsChanged(models_.rounding);
    return absl::OkStatus();
  }
  ZeroGrads();
  ++report_.optimizer.skipped_updates;
  report_.skip_reason = reason;
  return absl::OkStatus();
}

absl::StatusOr<bool> PolicyUpdate::Train(const Minibatch& mini) {
  TANDEM_ASSIGN_OR_RETURN(const LossNumbers sums, AccumulateGradients(mini));
  const double limit = options_.target_kl * static_cast<double>(sums.num_tokens);
  if (options_.target_kl > 0 && sums.proximal_kl_sum > limit) {
    ZeroGrads();
    report_.loss.kl_stopped = true;
    return false;
  }
  TANDEM_RETURN_IF_ERROR(Update(sums));
  return true;
}

}  // namespace tandem::trainer
