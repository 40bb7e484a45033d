#include "trainer/step/batch_scores.h"

#include <span>

#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"
#include "trainer/loss/pair_objective.h"

namespace tandem::trainer {
namespace {

std::vector<std::span<const float>> AsSpans(const std::vector<at::Tensor>& rows) {
  std::vector<std::span<const float>> spans;
  for (const at::Tensor& row : rows) {
    if (!row.defined()) return {};
    spans.emplace_back(row.const_data_ptr<float>(), static_cast<size_t>(row.numel()));
  }
  return spans;
}

// The rows that need a pass of their own before the first update. Those of the first minibatch need
// none, because its training pass sees the weights that the step starts from. Later minibatches see
// later weights, and with dropout its training pass leaves inputs out, so those rows are scored in
// every mode. That includes bypass, where the loss does
// not read them: drift metrics, captures and the additive split are about the weights that the step
// starts from.
Minibatch ProximalRows(const StepModels& models, const ScoringOptions& options,
                       const ExperienceBatch& batch) {
  const bool pooled = options.kl.coefficient > 0 || models.critic != nullptr ||
                      options.step.correction.batch_normalise || models.dropout_seed != 0;
  return {.begin = pooled ? 0 : batch.minibatches.front().end,
          .end = static_cast<int64_t>(batch.microbatches.size())};
}

// Proximal log-probs; with a critic on the policy's hidden states, those states of this rank's rows
// too.
absl::Status ScoreProximal(StepModels& models, const Minibatch& rows, RowPasses& passes,
                           std::vector<at::Tensor>& proximal, std::vector<at::Tensor>& hidden) {
  const ExperienceBatch& batch = passes.batch();
  TANDEM_RETURN_IF_ERROR(passes.Forward(*models.policy, rows, [&](size_t m) -> absl::Status {
    PassOptions options = {.temperature = models.temperature};
    if (models.trains_head_with_policy()) options.hidden_at = FindValuePlaces(batch, m).hidden_at;
    TANDEM_ASSIGN_OR_RETURN(const TokenScores scores,
                            models.policy->Run(batch.microbatches[m].row, options));
    proximal[m] = scores.logprobs;
    hidden[m] = scores.hidden;
    return absl::OkStatus();
  }));
  return passes.Share(rows, proximal);
}

// Takes the mean weight over the whole batch, so that the split into microbatches changes nothing.
absl::StatusOr<double> PoolWeights(const TrainStepOptions& options, const ExperienceBatch& batch,
                                   const std::vector<at::Tensor>& proximal) {
  double sum = 0;
  int64_t count = 0;
  for (size_t m = 0; m < batch.microbatches.size(); ++m) {
    TANDEM_ASSIGN_OR_RETURN(const offpolicy::Correction correction,
                            CorrectRow(batch.microbatches[m], proximal[m], options));
    sum += correction.weight_sum;
    count += correction.num_weights;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// A group's advantages may depend on all its members, and whitened ones on the whole batch.
absl::Status SetAdvantages(const StepModels& models, const ScoringOptions& options,
                           RowPasses& passes, ExperienceBatch& batch, BatchScores& scores,
                           StepReport& report) {
  const AdvantageOptions& advantage = options.advantage;
  const bool charges = options.kl.coefficient > 0;
  if (!charges && models.critic == nullptr && !advantage.whiten &&
      advantage.kind != AdvantageKind::kNone) {
    return absl::OkStatus();
  }
  if (charges) TANDEM_RETURN_IF_ERROR(passes.Share(passes.AllRows(), scores.reference));
  return CatchTorch("advantages", [&] {
    BatchAdvantages set = SetBatchAdvantages({.proximal = AsSpans(scores.proximal),
                                              .reference = AsSpans(scores.reference),
                                              .values = AsSpans(scores.values.rows),
                                              .bootstraps = scores.values.bootstraps},
                                             options.kl, advantage, batch);
    report.kl_penalty = set.kl_penalty;
    if (!report.critic.has_value()) return;
    report.critic->value_mean = set.critic.value_mean;
    report.critic->target_mean = set.critic.target_mean;
    report.critic->explained_variance = set.critic.explained_variance;
    scores.value_targets = std::move(set.critic.targets);
  });
}

}  // namespace

absl::StatusOr<offpolicy::Correction> CorrectRow(const Microbatch& micro,
                                                 const at::Tensor& proximal,
                                                 const TrainStepOptions& options) {
  offpolicy::CorrectionOptions row_options = options.correction;
  row_options.batch_normalise = false;
  if (!ReadsPairs(options.loss)) return CorrectMicrobatch(micro, proximal, row_options);
  TANDEM_ASSIGN_OR_RETURN(
      offpolicy::Correction correction,
      CorrectMicrobatch(micro, proximal, row_options, /*completions_per_unit=*/2));
  DropBrokenPairs(micro, correction);
  return correction;
}

absl::Status ScoreRows(PlacedPolicy& model, const PassOptions& options, const Minibatch& rows,
                       RowPasses& passes, std::vector<at::Tensor>& logprobs) {
  return passes.Forward(model, rows, [&](size_t m) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const TokenScores scores,
                            model.Run(passes.batch().microbatches[m].row, options));
    logprobs[m] = scores.logprobs;
    return absl::OkStatus();
  });
}

absl::StatusOr<BatchScores> ScoreBatch(StepModels& models, const ScoringOptions& options,
                                       RowPasses& passes, ExperienceBatch& batch,
                                       StepReport& report) {
  const size_t num_rows = batch.microbatches.size();
  BatchScores scores = {.proximal = std::vector<at::Tensor>(num_rows),
                        .reference = std::vector<at::Tensor>(num_rows)};
  std::vector<at::Tensor> hidden(num_rows);
  const Minibatch rows = ProximalRows(models, options, batch);
  if (rows.begin != rows.end) {
    TANDEM_RETURN_IF_ERROR(ScoreProximal(models, rows, passes, scores.proximal, hidden));
  }
  if (models.has_reference()) {
    PlacedPolicy& reference = models.reference ? *models.reference : *models.policy;
    TANDEM_RETURN_IF_ERROR(ScoreRows(
        reference,
        {.temperature = models.temperature, .lora = {.enabled = !models.reference_is_base}},
        passes.AllRows(), passes, scores.reference));
  }
  if (models.critic != nullptr) {
    report.critic.emplace();
    TANDEM_ASSIGN_OR_RETURN(scores.values, models.critic->Score(passes, hidden));
  }
  TANDEM_RETURN_IF_ERROR(SetAdvantages(models, options, passes, batch, scores, report));
  if (options.step.correction.batch_normalise) {
    TANDEM_ASSIGN_OR_RETURN(scores.weight_divisor,
                            PoolWeights(options.step, batch, scores.proximal));
  }
  return scores;
}

}  // namespace tandem::trainer
