#include "trainer/train_step.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/drift/peer_metrics.h"
#include "common/tensor/torch_status.h"
#include "trainer/drift/drift_record.h"
#include "trainer/loss/kl_controller.h"
#include "trainer/loss/pair_objective.h"
#include "trainer/loss/step_sums.h"
#include "trainer/policy/cuda/device_cast.h"
#include "trainer/step/batch_scores.h"
#include "trainer/step/policy_update.h"
#include "trainer/step/reference_update.h"
#include "trainer/step/step_models.h"

namespace tandem::trainer {
namespace {

// Of other models' tensors among those of the optimizer.
constexpr char kCriticPrefix[] = "critic.";
constexpr char kReferencePrefix[] = "reference.";  // of one that is not frozen

// Names of TrainStep::numbers().
constexpr char kKlCoefficient[] = "kl_coefficient";
constexpr char kPenaltyCoefficient[] = "penalty_coefficient";
constexpr char kCriticUpdates[] = "critic_updates";
constexpr char kWarmupSteps[] = "critic_warmup_steps";
constexpr char kReferenceSteps[] = "reference_steps";

TensorSource Renamed(const TensorSource& source, std::string name) {
  TensorSource renamed = source;
  renamed.spec.name = std::move(name);
  renamed.read = [read = source.read, spec = renamed.spec]() -> absl::StatusOr<HostTensor> {
    TANDEM_ASSIGN_OR_RETURN(HostTensor tensor, read());
    tensor.spec = spec;
    return tensor;
  };
  return renamed;
}

absl::StatusOr<std::unique_ptr<PlacedPolicy>> Place(const ModelConfig& config,
                                                    const std::vector<HostTensor>& weights,
                                                    const PlacedPolicyOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto placed, PlacedPolicy::Create(config, options));
  TANDEM_RETURN_IF_ERROR(placed->Fill(PresentAll(weights)));
  return placed;
}

std::span<const float> AsSpan(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())};
}

}  // namespace

struct TrainStep::Impl {
  TrainStepOptions options;     // with the coefficients that the controllers last set
  PlacedPolicyOptions placing;  // of the models
  AdvantageOptions advantage;
  KlInReward kl_in_reward;  // then `options` has no KL term in the loss
  StepModels models;
  LoraOptions lora;  // of the policy, and of a reference that it moves
  std::vector<HostTensor> lora_start;
  uint64_t seed = 0;              // of adapters
  int64_t warmup_steps_done = 0;  // of the critic
  int64_t reference_steps = 0;    // train steps of a reference that is not frozen

  absl::StatusOr<ExperienceBatch> Pack(std::span<const experience::v1::ScoredGroup> groups,
                                       bool whole_groups = false) const {
    return PackBatch(groups, {.microbatch_tokens = options.microbatch_tokens,
                              .num_minibatches = options.num_minibatches,
                              .vocab_size = models.policy->policy().config().vocab_size,
                              .num_ranks = models.ranks.size(),
                              .whole_groups = whole_groups});
  }
  PlacedPolicyOptions Plain(bool trainable) const {
    PlacedPolicyOptions own = placing;
    own.trainable = trainable;
    return own;
  }
  PlacedPolicyOptions Adapted(bool trainable) const {
    PlacedPolicyOptions own = Plain(trainable);
    own.lora = lora;
    own.lora_seed = seed;
    own.lora_start = lora_start;
    return own;
  }
  // The policy's weights are those of the last update again.
  void WeightsStand() {
    models.policy->policy().WeightsChanged(models.optimizer->num_updates() == 0 ? Rounding::kNearest
                                                                                : models.rounding);
  }
  absl::Status MakeCritic(const TrainStepSetup& setup);
  absl::StatusOr<GroupLogprobs> Score(PlacedPolicy& frozen,
                                      std::span<const experience::v1::ScoredGroup> groups);
  bool MovesReference() const {
    return models.reference != nullptr && options.reference.kind != ReferenceKind::kFrozen;
  }
  bool WarmsUp() const {
    return models.critic != nullptr && warmup_steps_done < options.critic.warmup_steps;
  }
  absl::Status TrainMinibatches(RowPasses& passes, BatchScores& scores, StepReport& report);
  // Train steps since the reference had weights of the policy, for kReset; else 0.
  int64_t ReferenceAge() const {
    const ReferenceOptions& reference = options.reference;
    return MovesReference() && reference.kind == ReferenceKind::kReset
               ? reference_steps % reference.reset_every
               : 0;
  }
  void ControlKl(const ExperienceBatch& batch, const StepReport& report);
  void MeasureDrift(const ExperienceBatch& batch, const BatchScores& scores, WeightVersion version,
                    StepReport& report) const;
  absl::Status MeasurePairs(const ExperienceBatch& batch, const BatchScores& scores,
                            WeightVersion version, StepReport& report) const;
  void Finish(std::span<const experience::v1::ScoredGroup> groups, const ExperienceBatch& batch,
              const BatchScores& scores, StepReport& report) const;
};

// Stages 6 to 8 of all minibatches and epochs. A critic of its own goes on where target_kl ends the
// policy's updates.
absl::Status TrainStep::Impl::TrainMinibatches(RowPasses& passes, BatchScores& scores,
                                               StepReport& report) {
  const ExperienceBatch& batch = passes.batch();
  PolicyUpdate update(models, options, passes, scores, report);
  bool trains_policy = !WarmsUp();
  const bool trains_critic = models.critic != nullptr && !models.critic->shares_backbone();
  for (int64_t epoch = 0; epoch < options.num_epochs; ++epoch) {
    for (const Minibatch& mini : batch.minibatches) {
      if (trains_policy) {
        TANDEM_ASSIGN_OR_RETURN(trains_policy, update.Train(mini));
      }
      if (trains_critic) {
        TANDEM_RETURN_IF_ERROR(models.critic->Train(passes, mini, scores.values,
                                                    scores.value_targets, *report.critic));
      }
    }
  }
  return update.ReportCorrection(passes.AllRows());
}

// The coefficients of the next step.
void TrainStep::Impl::ControlKl(const ExperienceBatch& batch, const StepReport& report) {
  const PolicyLossOptions& loss = options.loss;
  if (kl_in_reward.coefficient > 0 && loss.kl_control == KlControl::kAdaptive) {
    kl_in_reward.coefficient = ProportionalCoefficient(
        kl_in_reward.coefficient, report.kl_penalty / kl_in_reward.coefficient, loss.kl_target,
        static_cast<int64_t>(batch.completions.size()), loss.kl_horizon);
  }
  if (loss.objective.kind == offpolicy::ObjectiveKind::kPenalty && report.loss.num_tokens > 0) {
    options.loss.objective.penalty_coefficient = DoublingCoefficient(
        loss.objective.penalty_coefficient,
        report.loss.proximal_kl_sum / static_cast<double>(report.loss.num_tokens),
        loss.penalty_target);
  }
}

void TrainStep::Impl::MeasureDrift(const ExperienceBatch& batch, const BatchScores& scores,
                                   WeightVersion version, StepReport& report) const {
  std::vector<std::span<const float>> proximal;
  for (const at::Tensor& logprobs : scores.proximal) proximal.push_back(AsSpan(logprobs));
  const DriftRecord record = MakeDriftRecord(batch, proximal, version);
  report.drift = offpolicy::ComputeDriftMetrics(record.view());
  for (const offpolicy::SplitBy by : offpolicy::kAllSplits) {
    if (by == offpolicy::SplitBy::kTurn && record.turn.empty()) continue;
    report.drift_splits.emplace_back(by, offpolicy::BucketDrift(record.view(), by));
  }
  const bool one_update = batch.minibatches.size() * options.num_epochs <= 1;
  for (const std::string& name : options.peer_names) {  // CheckOptions knows them all
    const auto named = offpolicy::PeerMetrics(*offpolicy::ParsePeer(name), record.view(),
                                              {options.correction, one_update});
    report.peer_metrics.insert(report.peer_metrics.end(), named.begin(), named.end());
  }
}

absl::Status TrainStep::Impl::MeasurePairs(const ExperienceBatch& batch, const BatchScores& scores,
                                           WeightVersion version, StepReport& report) const {
  PairWeights& pairs = report.pairs.emplace();
  for (size_t m = 0; m < batch.microbatches.size(); ++m) {
    const Microbatch& micro = batch.microbatches[m];
    TANDEM_ASSIGN_OR_RETURN(const offpolicy::Correction correction,
                            CorrectRow(micro, scores.proximal[m], options));
    AddPairWeights(correction, micro, version, pairs);
  }
  return absl::OkStatus();
}

void TrainStep::Impl::Finish(std::span<const experience::v1::ScoredGroup> groups,
                             const ExperienceBatch& batch, const BatchScores& scores,
                             StepReport& report) const {
  LossNumbers& loss = report.loss;
  const auto num_updates = static_cast<double>(std::max<int64_t>(1, loss.num_updates));
  for (double* mean : {&loss.policy, &loss.kl, &loss.total, &loss.denominator})
    *mean /= num_updates;
  loss.has_reference = models.has_reference();
  if (report.optimizer.skipped_updates < loss.num_updates) report.skip_reason.clear();
  report.optimizer.state_bytes = models.optimizer->state_bytes();
  report.memory.masters = models.policy->buckets().master_bytes();
  report.memory.gradients = models.policy->buckets().gradient_bytes();
  if (models.reference != nullptr) {
    report.memory.reference = models.reference->buckets().master_bytes();
  }
  if (report.critic.has_value()) report.critic->held_bytes = models.critic->held_bytes();
  report.num_tokens = batch.num_trained_tokens;
  AddAdvantages(batch, report);
  report.proximal_logprobs.resize(groups.size());
  report.advantages.resize(groups.size());
  for (size_t m = 0; m < batch.microbatches.size(); ++m) {
    const Microbatch& micro = batch.microbatches[m];
    report.num_row_tokens += micro.row.num_tokens();
    TakeRow(batch, micro, AsSpan(scores.proximal[m]), report.proximal_logprobs);
    TakeRow(batch, micro, micro.advantages, report.advantages);
  }
}

absl::StatusOr<StepReport> TrainStep::Run(std::span<const experience::v1::ScoredGroup> groups,
                                          WeightVersion version) {
  StepReport report;
  const double start = MonotonicSeconds();

  // 4. groups -> batch
  const bool of_pairs = ReadsPairs(impl_->options.loss);
  TANDEM_ASSIGN_OR_RETURN(ExperienceBatch batch, impl_->Pack(groups, of_pairs));
  if (of_pairs) TANDEM_RETURN_IF_ERROR(CheckPairs(batch));
  RowPasses passes(batch, impl_->models.ranks);
  const double packed = MonotonicSeconds();

  // 5. batch -> proximal log-probs, under the weights this step starts from; reference log-probs,
  // values and the advantages that depend on them
  const bool warms_up = impl_->WarmsUp();
  TANDEM_ASSIGN_OR_RETURN(
      BatchScores scores,
      ScoreBatch(impl_->models,
                 {.step = impl_->options, .advantage = impl_->advantage, .kl = impl_->kl_in_reward},
                 passes, batch, report));
  const double scored = MonotonicSeconds();

  // 6, 7, 8. proximal / behaviour -> correction; target, correction, advantages -> loss, gradients;
  // gradients -> weights
  TANDEM_RETURN_IF_ERROR(impl_->TrainMinibatches(passes, scores, report));
  report.times.pack_s = packed - start;
  report.times.proximal_s = scored - packed;
  report.times.update_s = MonotonicSeconds() - scored;
  report.kl_coefficient =
      std::max(impl_->kl_in_reward.coefficient, impl_->options.loss.kl_coefficient);
  if (impl_->options.loss.objective.kind == offpolicy::ObjectiveKind::kPenalty) {
    report.penalty_coefficient = impl_->options.loss.objective.penalty_coefficient;
  }
  if (warms_up) {
    ++impl_->warmup_steps_done;
    report.critic->warms_up = true;
  }
  impl_->ControlKl(batch, report);
  report.reference_age = impl_->ReferenceAge();
  if (impl_->MovesReference()) {
    TANDEM_RETURN_IF_ERROR(MoveReference(impl_->options.reference, ++impl_->reference_steps,
                                         *impl_->models.policy, *impl_->models.reference)
                               .status());
  }
  impl_->MeasureDrift(batch, scores, version, report);
  if (of_pairs) TANDEM_RETURN_IF_ERROR(impl_->MeasurePairs(batch, scores, version, report));
  impl_->Finish(groups, batch, scores, report);
  return report;
}

TrainStep::TrainStep(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainStep::~TrainStep() = default;

absl::StatusOr<std::unique_ptr<TrainStep>> TrainStep::Create(const TrainStepSetup& setup,
                                                             const TrainStepOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  const bool has_reference = setup.reference_is_base || !setup.reference_weights.empty();
  if (options.loss.kl_coefficient > 0 && !has_reference) {
    return InvalidArgument("loss.kl_coefficient is ", options.loss.kl_coefficient,
                           " and there is no reference policy");
  }
  if (NeedsReference(options.loss) && !has_reference) {
    return InvalidArgument(
        "loss.preference.kind compares with a reference policy, and there is none");
  }
  auto impl = std::make_unique<Impl>();
  StepModels& models = impl->models;
  impl->options = options;
  models.temperature = setup.temperature;
  models.rounding = setup.rounding;
  models.ranks = comm::RankReducer(setup.collectives.values);
  impl->placing = {.dtype = setup.dtype,
                   .numerics = setup.numerics,
                   .fake_quantise = setup.fake_quantise,
                   .device = setup.device,
                   .collectives = setup.collectives,
                   .buckets = setup.buckets};
  impl->lora = setup.lora;
  impl->lora_start = setup.lora_start;
  impl->seed = setup.seed;
  impl->advantage = setup.advantage;
  if (IsInReward(options.loss.kl_place)) {
    impl->kl_in_reward = {.coefficient = std::exchange(impl->options.loss.kl_coefficient, 0),
                          .per_token = options.loss.kl_place == KlPlace::kTokenReward};
  }
  if (setup.lora.dropout > 0) models.dropout_seed = StableHash({setup.seed, 1}) | 1;
  TANDEM_ASSIGN_OR_RETURN(models.policy, Place(setup.config, setup.weights, impl->Adapted(true)));
  models.policy->policy().CheckpointActivations(setup.checkpoint_activations);
  models.reference_is_base = setup.reference_is_base;
  if (!setup.reference_weights.empty()) {
    const bool moves = options.reference.kind != ReferenceKind::kFrozen;
    TANDEM_ASSIGN_OR_RETURN(models.reference,
                            Place(setup.config, setup.reference_weights,
                                  moves ? impl->Adapted(false) : impl->Plain(false)));
  }
  TANDEM_ASSIGN_OR_RETURN(models.optimizer, MakeOptimizer(*models.policy, options.optimizer));
  TANDEM_RETURN_IF_ERROR(impl->MakeCritic(setup));
  return std::unique_ptr<TrainStep>(new TrainStep(std::move(impl)));
}

absl::Status TrainStep::Impl::MakeCritic(const TrainStepSetup& setup) {
  if (!NeedsCritic(advantage.kind)) return absl::OkStatus();
  const bool own = options.critic.backbone == CriticBackbone::kOwn;
  CriticSetup of_critic = {.config = setup.config,
                           .placing = placing,
                           .checkpoint_activations = setup.checkpoint_activations};
  if (own) {
    of_critic.config = setup.critic.config.value_or(setup.config);
    of_critic.weights = setup.critic.config ? setup.critic.weights : setup.weights;
    of_critic.head = setup.critic.head;
    if (!setup.critic.config && !setup.config.tie_word_embeddings) {
      of_critic.weights.pop_back();  // lm_head.weight, the last of ModelTensors
    }
  }
  TANDEM_ASSIGN_OR_RETURN(models.critic, Critic::Create(of_critic, options.critic));
  return absl::OkStatus();
}

absl::StatusOr<GroupLogprobs> TrainStep::Impl::Score(
    PlacedPolicy& frozen, std::span<const experience::v1::ScoredGroup> groups) {
  TANDEM_ASSIGN_OR_RETURN(const ExperienceBatch batch, Pack(groups));
  RowPasses passes(batch, models.ranks);
  std::vector<at::Tensor> rows_logprobs(batch.microbatches.size());
  TANDEM_RETURN_IF_ERROR(ScoreRows(frozen, {.temperature = models.temperature}, passes.AllRows(),
                                   passes, rows_logprobs));
  TANDEM_RETURN_IF_ERROR(passes.Share(passes.AllRows(), rows_logprobs));
  GroupLogprobs logprobs(groups.size());
  for (size_t m = 0; m < rows_logprobs.size(); ++m) {
    TakeRow(batch, batch.microbatches[m], AsSpan(rows_logprobs[m]), logprobs);
  }
  return logprobs;
}

absl::StatusOr<GroupLogprobs> TrainStep::Score(
    std::span<const experience::v1::ScoredGroup> groups) {
  return impl_->Score(*impl_->models.policy, groups);
}

absl::StatusOr<GroupLogprobs> TrainStep::ScoreUnder(
    std::span<const HostTensor> own_masters, Rounding rounding,
    std::span<const experience::v1::ScoredGroup> groups) {
  PlacedPolicy& policy = *impl_->models.policy;
  if (has_adapters()) {  // they are small: others take their place for a while
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorPart> live, policy.CopyOwnMasters());
    TANDEM_RETURN_IF_ERROR(policy.FillOwn(own_masters));
    policy.policy().WeightsChanged(rounding);
    auto scores = impl_->Score(policy, groups);
    TANDEM_RETURN_IF_ERROR(policy.FillOwn(ValuesOf(live)));
    impl_->WeightsStand();
    return scores;
  }
  TANDEM_ASSIGN_OR_RETURN(
      const auto other,
      PlacedPolicy::Create(policy.policy().config(), impl_->Plain(/*trainable=*/false)));
  TANDEM_RETURN_IF_ERROR(other->FillOwn(own_masters));
  other->policy().WeightsChanged(rounding);
  return impl_->Score(*other, groups);
}

absl::StatusOr<GroupLogprobs> TrainStep::ScoreModel(
    const std::vector<HostTensor>& tensors, Rounding rounding,
    std::span<const experience::v1::ScoredGroup> groups) {
  TANDEM_ASSIGN_OR_RETURN(const auto other, Place(impl_->models.policy->policy().config(), tensors,
                                                  impl_->Plain(/*trainable=*/false)));
  other->policy().WeightsChanged(rounding);
  return impl_->Score(*other, groups);
}

absl::StatusOr<double> TrainStep::DistanceFrom(const std::vector<HostTensor>& tensors) const {
  if (has_adapters()) {
    TANDEM_ASSIGN_OR_RETURN(const HeldAdapters held, impl_->models.policy->Adapters());
    return std::sqrt(std::accumulate(held.changes.begin(), held.changes.end(), 0.0));
  }
  TANDEM_ASSIGN_OR_RETURN(const double squares, impl_->models.policy->SquaredDistance(tensors));
  TANDEM_ASSIGN_OR_RETURN(const double sum, impl_->models.ranks.SumInOrder(squares));
  return std::sqrt(sum);
}

absl::StatusOr<std::vector<TensorPart>> TrainStep::OwnMasters() const {
  return impl_->models.policy->OwnMasters();
}
absl::StatusOr<std::vector<TensorPart>> TrainStep::HeldMasters() const {
  return impl_->models.policy->HeldMasters();
}
bool TrainStep::has_adapters() const { return impl_->models.policy->policy().adapters().enabled(); }
absl::StatusOr<std::vector<TensorPart>> TrainStep::MergedMasters(DType dtype,
                                                                 std::span<const HostTensor> own) {
  TANDEM_ASSIGN_OR_RETURN(auto merged, impl_->models.policy->MergedMasters(dtype, own));
  impl_->WeightsStand();
  return merged;
}
std::vector<TensorSource> TrainStep::MergedSources(const std::vector<HostTensor>& adapters,
                                                   DType dtype) const {
  return impl_->models.policy->MergedSources(adapters, dtype);
}
absl::StatusOr<HeldAdapters> TrainStep::Adapters(const HeldAdapters* before) {
  return impl_->models.policy->Adapters(before);
}
absl::StatusOr<std::vector<TensorPart>> TrainStep::CopyOwnMasters() const {
  return impl_->models.policy->CopyOwnMasters();
}

std::shared_ptr<BucketSource> TrainStep::DeviceBuckets(DType dtype, Rounding rounding) const {
  if (impl_->placing.device == Device::kCpu || sharded()) return nullptr;
  return MakeDeviceCast(impl_->models.policy->policy().parameters(), dtype, rounding);
}

std::vector<TensorSource> TrainStep::Gathered(std::vector<HostTensor> own, DType dtype) const {
  return impl_->models.policy->Gathered(std::move(own), dtype);
}

std::vector<TensorSource> TrainStep::Masters() const { return impl_->models.policy->Masters(); }

bool TrainStep::sharded() const { return impl_->models.policy->buckets().sharded(); }

absl::Status TrainStep::SumValues(std::span<double> values) {
  return impl_->models.ranks.Sum(values);
}

std::vector<TensorSource> TrainStep::OptimizerState() const {
  const StepModels& models = impl_->models;
  std::vector<TensorSource> state =
      models.optimizer->State([&models](size_t parameter, const std::vector<at::Tensor>& own) {
        return models.policy->buckets().Collect(parameter, own);
      });
  const auto append = [&](const char* prefix, const std::vector<TensorSource>& sources) {
    for (const TensorSource& source : sources) {
      state.push_back(Renamed(source, absl::StrCat(prefix, source.spec.name)));
    }
  };
  if (models.critic != nullptr) append(kCriticPrefix, models.critic->State());
  if (impl_->MovesReference()) append(kReferencePrefix, models.reference->Masters());
  return state;
}

std::map<std::string, double> TrainStep::numbers() const {
  const Impl& impl = *impl_;
  std::map<std::string, double> numbers;
  if (impl.options.loss.kl_control == KlControl::kAdaptive) {
    numbers[kKlCoefficient] = impl.kl_in_reward.coefficient;
  }
  if (impl.options.loss.objective.kind == offpolicy::ObjectiveKind::kPenalty) {
    numbers[kPenaltyCoefficient] = impl.options.loss.objective.penalty_coefficient;
  }
  if (impl.models.critic != nullptr) {
    numbers[kCriticUpdates] = static_cast<double>(impl.models.critic->num_updates());
    numbers[kWarmupSteps] = static_cast<double>(impl.warmup_steps_done);
  }
  if (impl.MovesReference()) numbers[kReferenceSteps] = static_cast<double>(impl.reference_steps);
  return numbers;
}

int64_t TrainStep::num_updates() const { return impl_->models.optimizer->num_updates(); }

int64_t TrainStep::num_parameters() const {
  int64_t count = 0;
  for (const NamedParameter& parameter : impl_->models.policy->policy().parameters()) {
    count += parameter.master.numel();
  }
  return count;
}

absl::Status TrainStep::Restore(const std::vector<TensorSource>& masters,
                                const std::vector<TensorSource>& optimizer_state,
                                int64_t num_updates, const std::map<std::string, double>& numbers) {
  StepModels& models = impl_->models;
  for (const auto& [name, value] : this->numbers()) {
    if (numbers.contains(name)) continue;
    return InvalidArgument("saved state: ", name,
                           " is missing: it was saved without what this run trains with");
  }
  // Those of the policy have no prefix.
  const auto take = [&](const std::string& prefix) {
    std::vector<TensorSource> taken;
    for (const TensorSource& source : optimizer_state) {
      const std::string& name = source.spec.name;
      if (name.starts_with(prefix)) taken.push_back(Renamed(source, name.substr(prefix.size())));
    }
    return taken;
  };
  TANDEM_RETURN_IF_ERROR(models.policy->Restore(masters));
  TANDEM_RETURN_IF_ERROR(models.optimizer->Restore(take(""), num_updates));
  impl_->WeightsStand();
  const auto number = [&](const char* name) { return numbers.at(name); };
  if (numbers.contains(kKlCoefficient)) impl_->kl_in_reward.coefficient = number(kKlCoefficient);
  if (numbers.contains(kPenaltyCoefficient)) {
    impl_->options.loss.objective.penalty_coefficient = number(kPenaltyCoefficient);
  }
  if (models.critic != nullptr) {
    impl_->warmup_steps_done = static_cast<int64_t>(number(kWarmupSteps));
    TANDEM_RETURN_IF_ERROR(
        models.critic->Restore(take(kCriticPrefix), static_cast<int64_t>(number(kCriticUpdates))));
  }
  if (!impl_->MovesReference()) return absl::OkStatus();
  impl_->reference_steps = static_cast<int64_t>(number(kReferenceSteps));
  return models.reference->Restore(take(kReferencePrefix));
}

void TrainStep::UseThreads(int64_t num_threads) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(num_threads > 0 ? num_threads : cores));
}

}  // namespace tandem::trainer
