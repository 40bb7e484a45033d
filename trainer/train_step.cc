#include "trainer/train_step.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/comm/rank_reducer.h"
#include "common/drift/peer_metrics.h"
#include "common/offpolicy/correction.h"
#include "common/offpolicy/policy_objective.h"
#include "common/tensor/torch_status.h"
#include "trainer/drift/drift_record.h"
#include "trainer/loss/correction_tensors.h"
#include "trainer/loss/kl_reward.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/loss/step_sums.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/placed_policy.h"
#include "trainer/policy/cuda/device_cast.h"

namespace tandem::trainer {
namespace {

using offpolicy::Correction;

template <typename T>
at::Tensor CopyOf(const std::vector<T>& values, at::ScalarType dtype) {
  at::Tensor result = at::empty({static_cast<int64_t>(values.size())}, dtype);
  std::memcpy(result.data_ptr(), values.data(), values.size() * sizeof(T));
  return result;
}

std::span<const float> AsSpan(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())};
}

}  // namespace

struct TrainStep::Impl {
  TrainStepOptions options;
  double temperature = 1;
  PlacedPolicyOptions placing;  // of the policy and its reference
  Rounding rounding = Rounding::kDither;
  AdvantageOptions advantage;
  double kl_in_reward = 0;  // coefficient of kl_place reward; then `options` has no KL term
  std::unique_ptr<PlacedPolicy> policy, reference;
  std::unique_ptr<AdamW> optimizer;
  comm::RankReducer reducer{nullptr};

  // The batch that is being trained. Vectors are by microbatch.
  struct BatchState {
    const ExperienceBatch* batch = nullptr;
    std::vector<int> rank_of;           // the rank that computes it
    std::vector<at::Tensor> proximal;   // [T] each; undefined until known
    std::vector<at::Tensor> reference;  // [T] each; undefined without a reference
    std::vector<bool> seen;             // whether the report has its correction
    double weight_divisor = 0;          // batch_normalise: mean weight of the batch; 0: not divided
    std::optional<double> second_moment_cutoff;  // m2po: of a minibatch of several microbatches
  };

  absl::StatusOr<ExperienceBatch> Pack(std::span<const experience::v1::ScoredGroup> groups) const {
    return PackBatch(groups, {.microbatch_tokens = options.microbatch_tokens,
                              .num_minibatches = options.num_minibatches,
                              .vocab_size = policy->policy().config().vocab_size,
                              .num_ranks = reducer.size()});
  }
  absl::StatusOr<std::unique_ptr<PlacedPolicy>> Unfilled(const ModelConfig& config,
                                                         bool trainable) const {
    PlacedPolicyOptions own = placing;
    own.trainable = trainable;
    return PlacedPolicy::Create(config, own);
  }
  absl::StatusOr<std::unique_ptr<PlacedPolicy>> Place(const ModelConfig& config,
                                                      const std::vector<HostTensor>& weights,
                                                      bool trainable) const;
  absl::Status MakeOptimizer(const OptimizerOptions& optimizer_options);
  absl::StatusOr<GroupLogprobs> Score(PlacedPolicy& frozen,
                                      std::span<const experience::v1::ScoredGroup> groups);
  Minibatch ProximalRows(const ExperienceBatch& batch) const;
  absl::Status ShareRows(const Minibatch& rows, const BatchState& state,
                         std::vector<at::Tensor>& rows_logprobs);
  std::vector<std::optional<size_t>> Passes(const Minibatch& rows, const BatchState& state) const;
  Minibatch AllRows(const BatchState& state) const {
    return {0, static_cast<int64_t>(state.batch->microbatches.size())};
  }
  absl::Status ScoreFrozen(PlacedPolicy& frozen, const Minibatch& rows, const BatchState& state,
                           std::vector<at::Tensor>& rows_logprobs) const;
  absl::Status ScoreProximal(BatchState& state);
  absl::Status PoolWeights(BatchState& state) const;
  absl::Status PoolSecondMoments(const Minibatch& mini, BatchState& state);
  absl::Status ChargeRewards(ExperienceBatch& batch, BatchState& state, StepReport& report);
  absl::StatusOr<Correction> Correct(size_t index, const BatchState& state) const;
  LossInputs MakeLossInputs(size_t index, const Correction& correction,
                            const BatchState& state) const;
  absl::StatusOr<LossNumbers> AccumulateGradients(const Minibatch& mini, BatchState& state,
                                                  StepReport& report);
  absl::Status AccumulateMicrobatches(const Minibatch& mini, BatchState& state,
                                      LossNumbers& minibatch);
  absl::Status AccumulateMicrobatch(size_t index, BatchState& state, LossNumbers& minibatch);
  absl::Status Update(const LossNumbers& sums, StepReport& report);
  absl::StatusOr<OptimizerUpdate> UpdateMasters(double grad_scale);
  void MeasureDrift(const BatchState& state, WeightVersion version, StepReport& report) const;
  void Finish(std::span<const experience::v1::ScoredGroup> groups, const BatchState& state,
              StepReport& report) const;
};

// The rows that need a pass of their own before the first update. Those of the first minibatch need
// none, because its training pass sees the weights that the step starts from. Later minibatches see
// later weights, so their rows are scored in every mode. That includes bypass, where the loss does
// not read them: drift metrics, captures and the additive split are about the weights that the step
// starts from.
Minibatch TrainStep::Impl::ProximalRows(const ExperienceBatch& batch) const {
  const bool pooled = kl_in_reward > 0 || options.correction.batch_normalise;
  return {.begin = pooled ? 0 : batch.minibatches.front().end,
          .end = static_cast<int64_t>(batch.microbatches.size())};
}

// The microbatches of this rank, in order, then nullopt for each that another rank has more: all
// ranks make the same number of passes.
std::vector<std::optional<size_t>> TrainStep::Impl::Passes(const Minibatch& rows,
                                                           const BatchState& state) const {
  std::vector<size_t> counts(static_cast<size_t>(reducer.size()), 0);
  std::vector<std::optional<size_t>> passes;
  for (auto m = static_cast<size_t>(rows.begin); m < static_cast<size_t>(rows.end); ++m) {
    ++counts[static_cast<size_t>(state.rank_of[m])];
    if (state.rank_of[m] == reducer.rank()) passes.emplace_back(m);
  }
  passes.resize(*std::ranges::max_element(counts));
  return passes;
}

// Scores this rank's rows without a gradient: [T] each.
absl::Status TrainStep::Impl::ScoreFrozen(PlacedPolicy& frozen, const Minibatch& rows,
                                          const BatchState& state,
                                          std::vector<at::Tensor>& rows_logprobs) const {
  for (const std::optional<size_t> m : Passes(rows, state)) {
    if (!m.has_value()) {
      TANDEM_RETURN_IF_ERROR(frozen.RunEmptyPass(Pass::kForward));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const TokenScores scores,
                            frozen.Score(state.batch->microbatches[*m].row, temperature,
                                         /*with_gradient=*/false));
    rows_logprobs[*m] = scores.logprobs;
  }
  return absl::OkStatus();
}

// Fetches those of [rows.begin, rows.end) that other ranks computed.
absl::Status TrainStep::Impl::ShareRows(const Minibatch& rows, const BatchState& state,
                                        std::vector<at::Tensor>& rows_logprobs) {
  std::vector<int64_t> lengths;
  for (int64_t m = rows.begin; m < rows.end; ++m) {
    lengths.push_back(state.batch->microbatches[static_cast<size_t>(m)].row.num_tokens());
  }
  return reducer.ShareRows(
      lengths, std::span(rows_logprobs).subspan(static_cast<size_t>(rows.begin), lengths.size()));
}

// To be called before the first update, while the weights are those of the proximal policy.
absl::Status TrainStep::Impl::ScoreProximal(BatchState& state) {
  const Minibatch rows = ProximalRows(*state.batch);
  if (rows.begin == rows.end) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(ScoreFrozen(*policy, rows, state, state.proximal));
  return ShareRows(rows, state, state.proximal);
}

// Takes the mean weight over the whole batch, so that the split into microbatches changes nothing.
absl::Status TrainStep::Impl::PoolWeights(BatchState& state) const {
  double sum = 0;
  int64_t count = 0;
  for (size_t m = 0; m < state.batch->microbatches.size(); ++m) {
    TANDEM_ASSIGN_OR_RETURN(const Correction correction, Correct(m, state));
    sum += correction.weight_sum;
    count += correction.num_weights;
  }
  state.weight_divisor = count == 0 ? 0 : sum / static_cast<double>(count);
  return absl::OkStatus();
}

// Which tokens m2po drops or clips depends on the target log-probs of the whole minibatch. So it
// needs another pass, unless the minibatch is one microbatch.
absl::Status TrainStep::Impl::PoolSecondMoments(const Minibatch& mini, BatchState& state) {
  const offpolicy::ObjectiveOptions& objective = options.loss.objective;
  if (!offpolicy::IsM2po(objective.kind) || mini.end - mini.begin == 1) {
    state.second_moment_cutoff.reset();
    return absl::OkStatus();
  }
  std::vector<double> squares;
  std::vector<at::Tensor> target(state.batch->microbatches.size());
  TANDEM_RETURN_IF_ERROR(ScoreFrozen(*policy, mini, state, target));
  TANDEM_RETURN_IF_ERROR(ShareRows(mini, state, target));
  for (auto m = static_cast<size_t>(mini.begin); m < static_cast<size_t>(mini.end); ++m) {
    if (!state.proximal[m].defined()) state.proximal[m] = target[m];
    TANDEM_ASSIGN_OR_RETURN(const Correction correction, Correct(m, state));
    LossInputs inputs = MakeLossInputs(m, correction, state);
    inputs.target_logprobs = target[m];
    AppendSecondMoments(inputs, squares);
  }
  state.second_moment_cutoff = offpolicy::SecondMomentCutoff(std::move(squares), objective);
  return absl::OkStatus();
}

// Needs the proximal log-probs of the whole batch: a group's advantages depend on all its members.
absl::Status TrainStep::Impl::ChargeRewards(ExperienceBatch& batch, BatchState& state,
                                            StepReport& report) {
  TANDEM_RETURN_IF_ERROR(ShareRows(AllRows(state), state, state.reference));
  return CatchTorch("KL in the reward", [&] {
    report.kl_penalty = ChargeKl(state.proximal, state.reference, kl_in_reward, advantage, batch);
  });
}

absl::StatusOr<LossNumbers> TrainStep::Impl::AccumulateGradients(const Minibatch& mini,
                                                                 BatchState& state,
                                                                 StepReport& report) {
  TANDEM_RETURN_IF_ERROR(PoolSecondMoments(mini, state));
  LossNumbers sums;
  TANDEM_RETURN_IF_ERROR(AccumulateMicrobatches(mini, state, sums));
  const double computed = MonotonicSeconds();
  TANDEM_RETURN_IF_ERROR(policy->buckets().FinishGradients());
  report.times.gradient_sum_wait_s += MonotonicSeconds() - computed;
  TANDEM_RETURN_IF_ERROR(SumOverRanks(reducer, sums));
  AddTokens(sums, report.loss);
  if (!state.seen[static_cast<size_t>(mini.begin)]) {
    TANDEM_RETURN_IF_ERROR(ShareRows(mini, state, state.proximal));
    for (auto m = static_cast<size_t>(mini.begin); m < static_cast<size_t>(mini.end); ++m) {
      state.seen[m] = true;
      TANDEM_ASSIGN_OR_RETURN(const Correction correction, Correct(m, state));
      AddCorrection(correction, state.batch->microbatches[m], report.correction);
    }
  }
  return sums;
}

// Trains on this rank's rows. Sums of gradients over ranks begin during the backward pass of the
// last row; a rank without rows begins them in FinishGradients.
absl::Status TrainStep::Impl::AccumulateMicrobatches(const Minibatch& mini, BatchState& state,
                                                     LossNumbers& minibatch) {
  const std::vector<std::optional<size_t>> passes = Passes(mini, state);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!passes[i].has_value()) {
      TANDEM_RETURN_IF_ERROR(policy->RunEmptyPass(Pass::kForward));
      TANDEM_RETURN_IF_ERROR(policy->RunEmptyPass(Pass::kBackward));
      continue;
    }
    const bool last = i + 1 == passes.size() || !passes[i + 1].has_value();
    if (last) policy->buckets().ExpectLastPass();
    TANDEM_RETURN_IF_ERROR(AccumulateMicrobatch(*passes[i], state, minibatch));
  }
  return absl::OkStatus();
}

// Stage 6 for one row, before it is divided by the batch's mean weight.
absl::StatusOr<Correction> TrainStep::Impl::Correct(size_t index, const BatchState& state) const {
  offpolicy::CorrectionOptions row_options = options.correction;
  row_options.batch_normalise = false;
  return CorrectMicrobatch(state.batch->microbatches[index], state.proximal[index], row_options);
}

// The inputs of the loss except the target log-probs and the scale.
LossInputs TrainStep::Impl::MakeLossInputs(size_t index, const Correction& correction,
                                           const BatchState& state) const {
  const Microbatch& micro = state.batch->microbatches[index];
  const CorrectionTensors tensors = MakeTensors(correction);
  return {.proximal_logprobs = tensors.proximal_logprobs,
          .weight = tensors.weight,
          .advantages = CopyOf(micro.advantages, at::kFloat),
          .reference_logprobs = state.reference[index],
          .kept = tensors.kept,
          .completion = CopyOf(micro.completion, at::kInt).to(at::kLong),
          .second_moment_cutoff = state.second_moment_cutoff};
}

// Stages 5 to 7 for one row: adds its part of the loss and of the gradient, before the division.
absl::Status TrainStep::Impl::AccumulateMicrobatch(size_t index, BatchState& state,
                                                   LossNumbers& minibatch) {
  const Microbatch& micro = state.batch->microbatches[index];
  TANDEM_ASSIGN_OR_RETURN(const TokenScores target,
                          policy->Score(micro.row, temperature, /*with_gradient=*/true));
  if (!state.proximal[index].defined()) state.proximal[index] = target.logprobs.detach().clone();
  TANDEM_ASSIGN_OR_RETURN(Correction correction, Correct(index, state));
  offpolicy::DivideWeights(state.weight_divisor, correction);
  const bool all = options.correction.denominator == offpolicy::DenominatorKind::kAll;
  const std::vector<int64_t> completion(micro.completion.begin(), micro.completion.end());
  const offpolicy::LossScales scales =
      offpolicy::ComputeLossScales(all ? micro.loss_mask : correction.kept, completion,
                                   micro.num_completions, options.loss.objective);
  return CatchTorch("policy loss", [&] {
    LossInputs inputs = MakeLossInputs(index, correction, state);
    inputs.target_logprobs = target.logprobs;
    inputs.scale = ToFloatTensor(scales.scale);
    const LossSums sums = SumPolicyLoss(inputs, options.loss);
    sums.total.backward();
    minibatch.policy += sums.policy.item<double>();
    minibatch.kl += options.loss.kl_coefficient * sums.kl.item<double>();
    minibatch.total += sums.total.item<double>();
    minibatch.denominator += scales.denominator;
    AddLoss(sums, inputs.kept, target.entropies, minibatch);
  });
}

// Each rank updates its slices of the masters; the gradient norm is that of all ranks.
absl::StatusOr<OptimizerUpdate> TrainStep::Impl::UpdateMasters(double grad_scale) {
  TANDEM_ASSIGN_OR_RETURN(const double own, CatchTorch("norm of gradients", [&] {
                            return optimizer->SquaredGradNorm();
                          }));
  TANDEM_ASSIGN_OR_RETURN(const double squares, reducer.SumInOrder(own));
  TANDEM_ASSIGN_OR_RETURN(const OptimizerUpdate update, CatchTorch("optimizer", [&] {
                            return optimizer->Step(squares, grad_scale);
                          }));
  if (!update.skipped) TANDEM_RETURN_IF_ERROR(policy->buckets().ShareMasters());
  return update;
}

// Stage 8, unless the minibatch has no kept token or no finite loss.
absl::Status TrainStep::Impl::Update(const LossNumbers& sums, StepReport& report) {
  LossNumbers& loss = report.loss;
  ++loss.num_updates;
  std::string reason;
  if (sums.num_tokens == 0) {  // whatever the denominator counts
    reason = "every token of the minibatch was refused by the correction";
  } else if (!std::isfinite(sums.total)) {
    reason = absl::StrCat("the loss is ", sums.total);
  } else {
    TANDEM_ASSIGN_OR_RETURN(const OptimizerUpdate update, UpdateMasters(1 / sums.denominator));
    report.optimizer.learning_rate = update.learning_rate;
    report.optimizer.grad_norm = update.grad_norm;
    report.optimizer.grad_clipped = update.clipped;
    if (update.skipped) reason = absl::StrCat("the gradient norm is ", update.grad_norm);
  }
  const double denominator = sums.denominator == 0 ? 1 : sums.denominator;
  loss.policy += sums.policy / denominator;
  loss.kl += sums.kl / denominator;
  loss.total += sums.total / denominator;
  loss.denominator += sums.denominator;
  if (reason.empty()) {
    policy->policy().WeightsChanged(rounding);
    return absl::OkStatus();
  }
  optimizer->ZeroGrads();
  ++report.optimizer.skipped_updates;
  report.skip_reason = reason;
  return absl::OkStatus();
}

void TrainStep::Impl::MeasureDrift(const BatchState& state, WeightVersion version,
                                   StepReport& report) const {
  std::vector<std::span<const float>> proximal;
  for (const at::Tensor& logprobs : state.proximal) proximal.push_back(AsSpan(logprobs));
  const DriftRecord record = MakeDriftRecord(*state.batch, proximal, version);
  report.drift = offpolicy::ComputeDriftMetrics(record.view());
  for (const offpolicy::SplitBy by : offpolicy::kAllSplits) {
    report.drift_splits.emplace_back(by, offpolicy::BucketDrift(record.view(), by));
  }
  const bool one_update = state.batch->minibatches.size() * options.num_epochs <= 1;
  for (const std::string& name : options.peer_names) {  // CheckOptions knows them all
    const auto named = offpolicy::PeerMetrics(*offpolicy::ParsePeer(name), record.view(),
                                              {options.correction, one_update});
    report.peer_metrics.insert(report.peer_metrics.end(), named.begin(), named.end());
  }
}

void TrainStep::Impl::Finish(std::span<const experience::v1::ScoredGroup> groups,
                             const BatchState& state, StepReport& report) const {
  LossNumbers& loss = report.loss;
  const auto num_updates = static_cast<double>(loss.num_updates);
  for (double* mean : {&loss.policy, &loss.kl, &loss.total, &loss.denominator})
    *mean /= num_updates;
  loss.has_reference = reference != nullptr;
  if (report.optimizer.skipped_updates < loss.num_updates) report.skip_reason.clear();
  report.optimizer.state_bytes = optimizer->state_bytes();
  report.memory.masters = policy->buckets().master_bytes();
  report.memory.gradients = policy->buckets().gradient_bytes();
  if (reference != nullptr) report.memory.reference = reference->buckets().master_bytes();
  report.num_tokens = state.batch->num_trained_tokens;
  AddAdvantages(*state.batch, report);
  report.proximal_logprobs.resize(groups.size());
  report.advantages.resize(groups.size());
  for (size_t m = 0; m < state.batch->microbatches.size(); ++m) {
    const Microbatch& micro = state.batch->microbatches[m];
    report.num_row_tokens += micro.row.num_tokens();
    TakeRow(*state.batch, micro, AsSpan(state.proximal[m]), report.proximal_logprobs);
    TakeRow(*state.batch, micro, micro.advantages, report.advantages);
  }
}

absl::StatusOr<StepReport> TrainStep::Run(std::span<const experience::v1::ScoredGroup> groups,
                                          WeightVersion version) {
  StepReport report;
  Impl::BatchState state;
  const double start = MonotonicSeconds();

  // 4. groups -> batch
  TANDEM_ASSIGN_OR_RETURN(ExperienceBatch batch, impl_->Pack(groups));
  state.batch = &batch;
  state.proximal.resize(batch.microbatches.size());
  state.reference.resize(batch.microbatches.size());
  state.seen.resize(batch.microbatches.size());
  state.rank_of = AssignRanks(batch, impl_->reducer.size());
  const double packed = MonotonicSeconds();

  // 5. batch -> proximal log-probs, under the weights this step starts from
  TANDEM_RETURN_IF_ERROR(impl_->ScoreProximal(state));
  if (impl_->reference != nullptr) {
    TANDEM_RETURN_IF_ERROR(
        impl_->ScoreFrozen(*impl_->reference, impl_->AllRows(state), state, state.reference));
  }
  if (impl_->kl_in_reward > 0) {
    TANDEM_RETURN_IF_ERROR(impl_->ChargeRewards(batch, state, report));
  }
  if (impl_->options.correction.batch_normalise) {
    TANDEM_RETURN_IF_ERROR(impl_->PoolWeights(state));
  }
  const double scored = MonotonicSeconds();

  for (int64_t epoch = 0; epoch < impl_->options.num_epochs; ++epoch) {
    for (const Minibatch& mini : batch.minibatches) {
      // 6, 7. proximal / behaviour -> correction; target, correction, advantages -> loss, gradients
      TANDEM_ASSIGN_OR_RETURN(const LossNumbers sums,
                              impl_->AccumulateGradients(mini, state, report));
      // 8. gradients -> weights
      TANDEM_RETURN_IF_ERROR(impl_->Update(sums, report));
    }
  }
  report.times.pack_s = packed - start;
  report.times.proximal_s = scored - packed;
  report.times.update_s = MonotonicSeconds() - scored;
  impl_->MeasureDrift(state, version, report);
  impl_->Finish(groups, state, report);
  return report;
}

TrainStep::TrainStep(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainStep::~TrainStep() = default;

absl::StatusOr<std::unique_ptr<TrainStep>> TrainStep::Create(const TrainStepSetup& setup,
                                                             const TrainStepOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  if (options.loss.kl_coefficient > 0 && setup.reference_weights.empty()) {
    return InvalidArgument("loss.kl_coefficient is ", options.loss.kl_coefficient,
                           " and there is no reference policy");
  }
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->temperature = setup.temperature;
  impl->placing = {.dtype = setup.dtype,
                   .numerics = setup.numerics,
                   .device = setup.device,
                   .collectives = setup.collectives,
                   .buckets = setup.buckets};
  impl->rounding = setup.rounding;
  impl->advantage = setup.advantage;
  impl->reducer = comm::RankReducer(setup.collectives.values);
  if (options.loss.kl_place == KlPlace::kReward) {
    impl->kl_in_reward = std::exchange(impl->options.loss.kl_coefficient, 0);
  }
  TANDEM_ASSIGN_OR_RETURN(impl->policy, impl->Place(setup.config, setup.weights,
                                                    /*trainable=*/true));
  impl->policy->policy().CheckpointActivations(setup.checkpoint_activations);
  if (!setup.reference_weights.empty()) {
    TANDEM_ASSIGN_OR_RETURN(impl->reference, impl->Place(setup.config, setup.reference_weights,
                                                         /*trainable=*/false));
  }
  TANDEM_RETURN_IF_ERROR(impl->MakeOptimizer(options.optimizer));
  return std::unique_ptr<TrainStep>(new TrainStep(std::move(impl)));
}

absl::Status TrainStep::Impl::MakeOptimizer(const OptimizerOptions& optimizer_options) {
  const ParameterBuckets& parts = policy->buckets();
  OwnSlices own = {.slices = parts.own_slices()};
  if (parts.sharded()) {
    own.apart = true;
    own.masters = parts.OwnMasters();
    own.gradients = parts.OwnGradients();
  }
  return CatchTorch("moments of the optimizer", [&] {
    optimizer =
        std::make_unique<AdamW>(&policy->policy().parameters(), optimizer_options, std::move(own));
  });
}

absl::StatusOr<std::unique_ptr<PlacedPolicy>> TrainStep::Impl::Place(
    const ModelConfig& config, const std::vector<HostTensor>& weights, bool trainable) const {
  TANDEM_ASSIGN_OR_RETURN(auto placed, Unfilled(config, trainable));
  TANDEM_RETURN_IF_ERROR(placed->Fill(PresentAll(weights)));
  return placed;
}

absl::StatusOr<GroupLogprobs> TrainStep::Impl::Score(
    PlacedPolicy& frozen, std::span<const experience::v1::ScoredGroup> groups) {
  TANDEM_ASSIGN_OR_RETURN(const ExperienceBatch batch, Pack(groups));
  BatchState state;
  state.batch = &batch;
  state.rank_of = AssignRanks(batch, reducer.size());
  std::vector<at::Tensor> rows_logprobs(batch.microbatches.size());
  TANDEM_RETURN_IF_ERROR(ScoreFrozen(frozen, AllRows(state), state, rows_logprobs));
  TANDEM_RETURN_IF_ERROR(ShareRows(AllRows(state), state, rows_logprobs));
  GroupLogprobs logprobs(groups.size());
  for (size_t m = 0; m < rows_logprobs.size(); ++m) {
    TakeRow(batch, batch.microbatches[m], AsSpan(rows_logprobs[m]), logprobs);
  }
  return logprobs;
}

absl::StatusOr<GroupLogprobs> TrainStep::Score(
    std::span<const experience::v1::ScoredGroup> groups) {
  return impl_->Score(*impl_->policy, groups);
}

absl::StatusOr<GroupLogprobs> TrainStep::ScoreUnder(
    std::span<const HostTensor> own_masters, Rounding rounding,
    std::span<const experience::v1::ScoredGroup> groups) {
  TANDEM_ASSIGN_OR_RETURN(const auto other,
                          impl_->Unfilled(impl_->policy->policy().config(), /*trainable=*/false));
  TANDEM_RETURN_IF_ERROR(other->FillOwn(own_masters));
  other->policy().WeightsChanged(rounding);
  return impl_->Score(*other, groups);
}

absl::StatusOr<double> TrainStep::DistanceFrom(const std::vector<HostTensor>& tensors) const {
  TANDEM_ASSIGN_OR_RETURN(const double squares, impl_->policy->SquaredDistance(tensors));
  TANDEM_ASSIGN_OR_RETURN(const double sum, impl_->reducer.SumInOrder(squares));
  return std::sqrt(sum);
}

absl::StatusOr<std::vector<TensorPart>> TrainStep::OwnMasters() const {
  return impl_->policy->OwnMasters();
}
absl::StatusOr<std::vector<TensorPart>> TrainStep::HeldMasters() const {
  return impl_->policy->HeldMasters();
}
absl::StatusOr<std::vector<TensorPart>> TrainStep::CopyOwnMasters() const {
  return impl_->policy->CopyOwnMasters();
}

std::shared_ptr<BucketSource> TrainStep::DeviceBuckets(DType dtype, Rounding rounding) const {
  if (impl_->placing.device == Device::kCpu || sharded()) return nullptr;
  return MakeDeviceCast(impl_->policy->policy().parameters(), dtype, rounding);
}

std::vector<TensorSource> TrainStep::Gathered(std::vector<HostTensor> own, DType dtype) const {
  return impl_->policy->Gathered(std::move(own), dtype);
}

std::vector<TensorSource> TrainStep::Masters() const { return impl_->policy->Masters(); }

bool TrainStep::sharded() const { return impl_->policy->buckets().sharded(); }

absl::Status TrainStep::SumValues(std::span<double> values) { return impl_->reducer.Sum(values); }

std::vector<TensorSource> TrainStep::OptimizerState() const {
  return impl_->optimizer->State([this](size_t parameter, const std::vector<at::Tensor>& own) {
    return impl_->policy->buckets().Collect(parameter, own);
  });
}

int64_t TrainStep::num_updates() const { return impl_->optimizer->num_updates(); }

int64_t TrainStep::num_parameters() const {
  int64_t count = 0;
  for (const NamedParameter& parameter : impl_->policy->policy().parameters()) {
    count += parameter.master.numel();
  }
  return count;
}

absl::Status TrainStep::Restore(const std::vector<TensorSource>& masters,
                                const std::vector<TensorSource>& optimizer_state,
                                int64_t num_updates) {
  TANDEM_RETURN_IF_ERROR(impl_->policy->Restore(masters));
  TANDEM_RETURN_IF_ERROR(impl_->optimizer->Restore(optimizer_state, num_updates));
  impl_->policy->policy().WeightsChanged(num_updates == 0 ? Rounding::kNearest : impl_->rounding);
  return absl::OkStatus();
}

void TrainStep::UseThreads(int64_t num_threads) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(num_threads > 0 ? num_threads : cores));
}

}  // namespace tandem::trainer
