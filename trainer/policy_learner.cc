#include "trainer/policy_learner.h"

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/lora/adapted_model.h"
#include "common/lora/lora_shape.h"
#include "common/lora/peft_files.h"
#include "common/model/model_config.h"
#include "common/model/numerics_self_test.h"
#include "common/process/memory.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"
#include "trainer/critic/scored_model.h"
#include "trainer/policy/libtorch_version.h"
#include "trainer/ranks/cuda_device.h"
#include "trainer/ranks/device_choice.h"
#include "trainer/train_step.h"
#include "trainer/weight_push/adapter_push.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;

HostTensor NewTensor(const TensorSpec& spec) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(spec.num_elements()));
  return {spec, std::as_bytes(std::span(*values)), values};
}

float* Values(const HostTensor& own) {  // of a NewTensor, or its copy
  return reinterpret_cast<float*>(const_cast<std::byte*>(own.bytes.data()));
}

// F32 masters as a push sends them to a bf16 server, in F32.
std::vector<HostTensor> AsBf16(const std::vector<TensorPart>& masters, Rounding rounding) {
  std::vector<HostTensor> cast;
  std::vector<uint16_t> bits;
  for (const TensorPart& part : masters) {
    const HostTensor& own = part.values;
    bits.resize(static_cast<size_t>(own.spec.num_elements()));
    CastToBf16(own.spec.name, part.first, reinterpret_cast<const float*>(own.bytes.data()),
               own.spec.num_elements(), rounding, bits.data());
    float* const widened = Values(cast.emplace_back(NewTensor(own.spec)));
    for (size_t i = 0; i < bits.size(); ++i) widened[i] = Bf16ToFloat(bits[i]);
  }
  return cast;
}

// The memory of the first step, where it can be told apart.
void SayMemory(const StepReport& report) {
  const HeldMemory& held = report.memory;
  const int64_t moments = report.optimizer.state_bytes;
  if (!held.device.has_value()) {
    log::Info("memory of the first step", {{"masters_bytes", held.masters},
                                           {"gradients_bytes", held.gradients},
                                           {"moments_bytes", moments},
                                           {"reference_bytes", held.reference},
                                           {"process_peak_bytes", PeakMemoryBytes()}});
    return;
  }
  log::Info("memory of the first step on the device",
            {{"masters_bytes", held.masters},
             {"gradients_bytes", held.gradients},
             {"moments_bytes", moments},
             {"reference_bytes", held.reference},
             {"activations_and_casts_bytes", TransientBytes(report)},
             {"peak_bytes", held.device->allocated},
             {"reserved_bytes", held.device->reserved},
             {"device_bytes", TotalCudaMemory()}});
}

class PolicyLearner : public Learner {
 public:
  // `start`: views of the model directory's tensors, in ModelTensors order.
  PolicyLearner(std::unique_ptr<TrainStep> step, const LearnerOptions& options,
                std::vector<HostTensor> start, std::string adapter_config)
      : step_(std::move(step)),
        adapter_config_(std::move(adapter_config)),
        device_(options.device),
        cast_(options.cast),
        lora_(options.lora),
        start_(std::move(start)) {}

  absl::StatusOr<LearnerReport> Train(const std::vector<ScoredGroup>& groups,
                                      WeightVersion version) override {
    if (device_ == Device::kCuda) {
      ResetPeakCudaMemory();
    } else {
      ReturnFreedMemory();
    }
    TANDEM_ASSIGN_OR_RETURN(StepReport report, step_->Run(groups, version));
    if (device_ == Device::kCuda) report.memory.device = PeakCudaMemory();
    if (!std::exchange(said_memory_, true)) SayMemory(report);
    LearnerReport numbers;
    numbers.skip_reason = report.skip_reason;
    numbers.metrics = NamedNumbers(report);
    numbers.documents = NamedDocuments(report);
    const auto histogram = [&](const char* name, const WeightHistogram& counts) {
      numbers.histograms.emplace_back(name, std::vector<int64_t>(counts.begin(), counts.end()));
    };
    histogram("correction/hist_raw", report.correction.hist_raw);
    histogram("correction/hist_truncated", report.correction.hist_truncated);
    numbers.num_tokens = report.num_tokens;
    for (size_t i = 0; i < groups.size(); ++i) {
      numbers.proximal_logprobs[groups[i].group_id()] = std::move(report.proximal_logprobs[i]);
      numbers.advantages[groups[i].group_id()] = std::move(report.advantages[i]);
    }
    return numbers;
  }

  absl::StatusOr<GroupLogprobs> Score(const std::vector<ScoredGroup>& groups,
                                      const ScoredWeights& weights) override {
    if (weights.masters == nullptr && !weights.as_bf16) return step_->Score(groups);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorPart> own, MastersOf(weights));
    if (step_->has_adapters() && weights.as_bf16) {
      const std::vector<HostTensor> adapters = ValuesOf(own);
      TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorPart> merged,
                              step_->MergedMasters(DType::kBF16, adapters));
      return step_->ScoreModel(AsBf16(merged, weights.rounding), weights.rounding, groups);
    }
    return step_->ScoreUnder(weights.as_bf16 ? AsBf16(own, weights.rounding) : ValuesOf(own),
                             weights.rounding, groups);
  }

  absl::StatusOr<double> DistanceFromStart() const override { return step_->DistanceFrom(start_); }

  // Weights that were never updated are cast as a server casts them when it loads the directory:
  // then it has them already, and the first push is not made.
  absl::StatusOr<CastWeights> Cast(DType dtype) override {
    if (device_ != Device::kCuda) ReturnFreedMemory();  // what the passes held
    CastWeights cast = {.rounding =
                            step_->num_updates() == 0 ? Rounding::kNearest : cast_.rounding};
    served_dtype_ = dtype;
    if (step_->has_adapters() && lora_.push == LoraPush::kAdapters) {
      return CastAdapters(dtype, cast.rounding);
    }
    const bool merges = step_->has_adapters();
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorPart> held,
                            merges ? step_->MergedMasters(dtype) : step_->HeldMasters());
    TANDEM_ASSIGN_OR_RETURN(CastParts parts, caster_.Cast(held, dtype, cast.rounding));
    if (step_->sharded() && !merges) {
      std::vector<double> sums;
      for (const double* const sum : parts.sums.all()) sums.push_back(*sum);
      TANDEM_RETURN_IF_ERROR(step_->SumValues(std::span(sums)));
      for (size_t i = 0; i < sums.size(); ++i) *parts.sums.all()[i] = sums[i];
      cast.tensors = step_->Gathered(std::move(parts.tensors), dtype);
    } else {
      cast.tensors = PresentAll(std::move(parts.tensors));
    }
    if (!merges) cast.on_device = step_->DeviceBuckets(dtype, cast.rounding);
    cast.numbers = parts.sums.Numbers();
    return cast;
  }

  absl::StatusOr<KeptMasters> Keep() override {
    TANDEM_ASSIGN_OR_RETURN(std::vector<TensorPart> copies, step_->CopyOwnMasters());
    const auto owner = std::make_shared<const std::vector<TensorPart>>(std::move(copies));
    std::erase_if(kept_, [](const auto& kept) { return kept.second.expired(); });
    kept_[++num_kept_] = owner;
    if (step_->has_adapters()) {  // what captures need is the model
      TANDEM_ASSIGN_OR_RETURN(const HeldAdapters held, step_->Adapters());
      return KeptMasters{num_kept_,  step_->MergedSources(held.tensors, served_dtype_),
                         owner,      held.tensors,
                         lora_.rank, lora_.scaling()};
    }
    return KeptMasters{num_kept_, step_->Gathered(ValuesOf(*owner), DType::kF32), owner};
  }

  absl::StatusOr<LearnerState> Save() override {
    return LearnerState{step_->Masters(), step_->OptimizerState(), step_->num_updates(),
                        step_->numbers(), adapter_config_};
  }

  absl::Status Restore(const LearnerState& state) override {
    return step_->Restore(state.weights, state.optimizer, state.num_updates, state.numbers);
  }

  std::string StartDigest() const override { return CombinedDigest(DigestTensors(start_)); }

  int64_t num_parameters() const override { return step_->num_parameters(); }
  std::string library_version() const override { return LibTorchVersion(); }
  std::string kernels() const override { return KernelsOf(device_); }

 private:
  // A push of A and B, which servers merge; every rank has them whole.
  absl::StatusOr<CastWeights> CastAdapters(DType dtype, Rounding rounding) {
    TANDEM_ASSIGN_OR_RETURN(HeldAdapters held, step_->Adapters(pushed_ ? &*pushed_ : nullptr));
    TANDEM_ASSIGN_OR_RETURN(const std::string base_digest, BaseDigest(dtype));
    auto push = std::make_shared<AdapterPush>();
    *push = {.rank = lora_.rank,
             .scaling = lora_.scaling(),
             .dither = rounding == Rounding::kDither,
             .base_digest = base_digest};
    for (size_t m = 0; m < held.modules.size(); ++m) {
      push->modules.push_back({held.modules[m].weight, held.changes[m]});
    }
    for (const HostTensor& tensor : start_) push->num_elements += tensor.spec.num_elements();
    CastWeights cast = {.rounding = rounding, .adapter = push};
    cast.numbers.update_norm =
        std::sqrt(std::accumulate(held.moves.begin(), held.moves.end(), 0.0));
    pushed_ = {.modules = {}, .tensors = held.tensors, .changes = held.changes, .moves = {}};
    cast.tensors = PresentAll(std::move(held.tensors));
    return cast;
  }

  // CombinedDigest of the base in the dtype of servers.
  absl::StatusOr<std::string> BaseDigest(DType dtype) {
    std::string& digest = base_digests_[dtype];
    if (!digest.empty()) return digest;
    DigestMap digests;
    for (const HostTensor& tensor : start_) {
      TANDEM_ASSIGN_OR_RETURN(const HostTensor cast, CastNearest(tensor, dtype));
      digests[tensor.spec.name] = Digest128(cast.bytes);
    }
    return digest = CombinedDigest(digests);
  }

  // This rank's part of them.
  absl::StatusOr<std::vector<TensorPart>> MastersOf(const ScoredWeights& weights) {
    if (weights.masters == nullptr) return step_->OwnMasters();
    const auto kept = kept_[weights.masters->number].lock();
    TANDEM_CHECK(kept != nullptr);
    return *kept;
  }

  const std::unique_ptr<TrainStep> step_;
  const std::string adapter_config_;
  const Device device_;
  const WeightCastOptions cast_;
  WeightCaster caster_;
  const LoraOptions lora_;
  DType served_dtype_ = DType::kF32;    // of servers
  std::optional<HeldAdapters> pushed_;  // adapters of the push before
  std::map<DType, std::string> base_digests_;
  const std::vector<HostTensor> start_;
  // By number, while someone owns them: of each slice of this rank.
  std::map<int64_t, std::weak_ptr<const std::vector<TensorPart>>> kept_;
  int64_t num_kept_ = 0;
  bool said_memory_ = false;
};

// The adapters of lora.start, which must be of the form that the run trains.
absl::StatusOr<std::vector<HostTensor>> ReadAdapterStart(const LoraOptions& options,
                                                         const ModelConfig& config,
                                                         std::span<const HostTensor> base) {
  if (!options.enabled() || options.start.empty()) return std::vector<HostTensor>();
  TANDEM_ASSIGN_OR_RETURN(LoraAdapter start, ReadPeftDirectory(options.start, config));
  TANDEM_RETURN_IF_ERROR(CheckCopies(start, base));
  auto modules = LoraModules(config, options);
  if (!modules.ok()) {
    return InvalidArgument("trainer.lora.targets: ", modules.status().message());
  }
  const auto differs = [&](const char* what, const auto& has, const auto& wanted) {
    return InvalidArgument("trainer.lora.start ", options.start, " has ", what, " ", has,
                           ", and trainer.lora ", wanted, ": set it to ", has);
  };
  if (start.options.rank != options.rank) {
    return differs("rank", start.options.rank, options.rank);
  }
  if (start.options.scaling() != options.scaling()) {
    return differs("a scaling (alpha / rank, or with rslora alpha / sqrt(rank)) of",
                   start.options.scaling(), options.scaling());
  }
  if (start.modules != *modules) {
    return InvalidArgument("trainer.lora.start ", options.start,
                           " adapts other layers than trainer.lora.targets names; its own are ",
                           absl::StrJoin(start.options.targets, ", "));
  }
  return std::move(start.tensors);
}

// Weights of the policy's architecture.
absl::StatusOr<std::vector<HostTensor>> ReadReference(const std::string& directory,
                                                      const ModelConfig& of_policy) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadAdaptedTensors(directory));
  absl::StatusOr<std::vector<HostTensor>> matched =
      MatchModelTensors(of_policy, std::move(tensors));
  if (matched.ok()) return matched;
  return InvalidArgument("reference.model ", directory,
                         " is no model of the policy's architecture: ", matched.status().message());
}

// The model that a critic starts from: any with the policy's vocabulary; its head over it is not
// read, and score.weight is where it has one.
absl::StatusOr<TrainStepSetup::CriticStart> ReadCriticStart(const std::string& directory,
                                                            const ModelConfig& of_policy) {
  TANDEM_ASSIGN_OR_RETURN(ScoredModel model, ReadScoredModel(directory));
  if (model.config.vocab_size != of_policy.vocab_size) {
    return InvalidArgument("critic.model ", directory, " has a vocabulary of ",
                           model.config.vocab_size, " tokens, and the policy one of ",
                           of_policy.vocab_size, ": the critic must read the policy's tokens");
  }
  if (model.head.has_value() && model.head->spec.shape[0] != 1) {
    return InvalidArgument("critic.model ", directory, " has ", model.head->spec.shape[0],
                           " heads (", model.head->spec.ToString(),
                           "), and a value is one number: train a reward model with one head");
  }
  return TrainStepSetup::CriticStart{std::move(model.config), std::move(model.weights),
                                     std::move(model.head)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Learner>> CreatePolicyLearner(const PolicyLearnerSetup& setup) {
  const LearnerOptions& options = setup.options;
  TrainStep::UseThreads(options.num_threads);
  TrainStepSetup step_setup = {.dtype = options.dtype,
                               .numerics = options.numerics,
                               .fake_quantise = options.fake_quantise,
                               .lora = options.lora,
                               .seed = setup.seed,
                               .device = options.device,
                               .rounding = options.cast.rounding,
                               .temperature = setup.temperature,
                               .advantage = setup.advantage,
                               .collectives = setup.collectives,
                               .buckets = {.shard_parameters = setup.shard_parameters},
                               .checkpoint_activations = options.checkpoint_activations};
  TANDEM_ASSIGN_OR_RETURN(step_setup.config, ReadModelConfig(setup.model_directory));
  // On a device the server checks its own kernels, which are the same ones.
  if (options.numerics == Numerics::kExact && options.device == Device::kCpu) {
    TANDEM_RETURN_IF_ERROR(CheckInvariance(step_setup.config, ActiveInstructionSet()));
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors,
                          ReadAdaptedTensors(setup.model_directory));
  TANDEM_ASSIGN_OR_RETURN(step_setup.weights,
                          MatchModelTensors(step_setup.config, std::move(tensors)));
  TrainStepOptions step_options = options.step;
  int64_t& constant_length = step_options.loss.objective.constant_length;
  if (constant_length == 0) constant_length = setup.max_new_tokens;
  TANDEM_ASSIGN_OR_RETURN(step_setup.lora_start,
                          ReadAdapterStart(options.lora, step_setup.config, step_setup.weights));
  if (NeedsReference(step_options.loss) || options.measure_reference_kl) {
    const ReferenceOptions& reference = step_options.reference;
    step_setup.reference_is_base = options.lora.enabled() && reference.model.empty() &&
                                   reference.kind == ReferenceKind::kFrozen;
    if (!step_setup.reference_is_base) step_setup.reference_weights = step_setup.weights;
    if (!reference.model.empty()) {
      TANDEM_ASSIGN_OR_RETURN(step_setup.reference_weights,
                              ReadReference(step_options.reference.model, step_setup.config));
    }
  }
  if (NeedsCritic(setup.advantage.kind) && !step_options.critic.model.empty()) {
    TANDEM_ASSIGN_OR_RETURN(step_setup.critic,
                            ReadCriticStart(step_options.critic.model, step_setup.config));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TrainStep> step,
                          TrainStep::Create(step_setup, step_options));
  std::string adapter_config;
  if (options.lora.enabled()) {
    TANDEM_ASSIGN_OR_RETURN(const auto modules, LoraModules(step_setup.config, options.lora));
    adapter_config = PeftConfigText(setup.model_directory, options.lora, modules);
  }
  return std::make_unique<PolicyLearner>(std::move(step), options, std::move(step_setup.weights),
                                         std::move(adapter_config));
}

}  // namespace tandem::trainer
