#include "trainer/policy_learner.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/model/numerics_self_test.h"
#include "common/model/safetensors.h"
#include "common/tensor/instruction_set.h"
#include "trainer/libtorch_version.h"
#include "trainer/train_step.h"

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

HostTensor CopyOf(const HostTensor& tensor) {
  HostTensor copy = NewTensor(tensor.spec);
  std::ranges::copy(tensor.bytes, reinterpret_cast<std::byte*>(Values(copy)));
  return copy;
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
    for (size_t i = 0; i < bits.size(); ++i) {
      widened[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
    }
  }
  return cast;
}

std::vector<HostTensor> ValuesOf(const std::vector<TensorPart>& parts) {
  std::vector<HostTensor> values;
  for (const TensorPart& part : parts) values.push_back(part.values);
  return values;
}

class PolicyLearner : public Learner {
 public:
  // `start`: views of the model directory's tensors, in ModelTensors order.
  PolicyLearner(std::unique_ptr<TrainStep> step, const WeightCastOptions& cast,
                std::vector<HostTensor> start)
      : step_(std::move(step)), cast_(cast), start_(std::move(start)) {}

  absl::StatusOr<LearnerReport> Train(const std::vector<ScoredGroup>& groups,
                                      WeightVersion version) override {
    TANDEM_ASSIGN_OR_RETURN(StepReport report, step_->Run(groups, version));
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
    }
    return numbers;
  }

  absl::StatusOr<GroupLogprobs> Score(const std::vector<ScoredGroup>& groups,
                                      const ScoredWeights& weights) override {
    if (weights.masters == nullptr && !weights.as_bf16) return step_->Score(groups);
    std::vector<TensorPart> own = step_->OwnMasters();
    std::shared_ptr<const std::vector<HostTensor>> kept;
    if (weights.masters != nullptr) {
      kept = kept_[weights.masters->number].lock();
      TANDEM_CHECK(kept != nullptr && kept->size() == own.size());
      for (size_t i = 0; i < own.size(); ++i) own[i].values = (*kept)[i];
    }
    return step_->ScoreUnder(
        weights.as_bf16 ? AsBf16(own, weights.rounding) : ValuesOf(own), weights.rounding, groups);
  }

  absl::StatusOr<double> DistanceFromStart() const override { return step_->DistanceFrom(start_); }

  // Weights that were never updated are cast as a server casts them when it loads the directory:
  // then it has them already, and the first push is not made.
  absl::StatusOr<CastWeights> Cast(DType dtype) override {
    CastWeights cast = {.rounding = step_->num_updates() == 0 ? Rounding::kNearest
                                                              : cast_.rounding};
    TANDEM_ASSIGN_OR_RETURN(CastParts parts,
                            caster_.Cast(step_->HeldMasters(), dtype, cast.rounding));
    if (step_->sharded()) {
      std::vector<double> sums;
      for (const double* const sum : parts.sums.all()) sums.push_back(*sum);
      TANDEM_RETURN_IF_ERROR(step_->SumValues(std::span(sums)));
      for (size_t i = 0; i < sums.size(); ++i) *parts.sums.all()[i] = sums[i];
      cast.tensors = step_->Gathered(std::move(parts.tensors), dtype);
    } else {
      for (HostTensor& tensor : parts.tensors) cast.tensors.push_back(Present(std::move(tensor)));
    }
    cast.numbers = parts.sums.Numbers();
    return cast;
  }

  absl::StatusOr<KeptMasters> Keep() override {
    std::vector<HostTensor> copies;
    for (const TensorPart& part : step_->OwnMasters()) copies.push_back(CopyOf(part.values));
    const auto owner = std::make_shared<const std::vector<HostTensor>>(std::move(copies));
    std::erase_if(kept_, [](const auto& kept) { return kept.second.expired(); });
    kept_[++num_kept_] = owner;
    return KeptMasters{num_kept_, step_->Gathered(*owner, DType::kF32), owner};
  }

  absl::StatusOr<LearnerState> Save() override {
    return LearnerState{step_->Masters(), step_->OptimizerState(), step_->num_updates()};
  }

  absl::Status Restore(const LearnerState& state) override {
    return step_->Restore(state.weights, state.optimizer, state.num_updates);
  }

  int64_t num_parameters() const override { return step_->num_parameters(); }
  std::string library_version() const override { return LibTorchVersion(); }

 private:
  const std::unique_ptr<TrainStep> step_;
  const WeightCastOptions cast_;
  WeightCaster caster_;
  const std::vector<HostTensor> start_;
  // By number, while someone owns them: of each slice of this rank.
  std::map<int64_t, std::weak_ptr<const std::vector<HostTensor>>> kept_;
  int64_t num_kept_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Learner>> CreatePolicyLearner(const std::string& model_directory,
                                                             const LearnerOptions& options,
                                                             const AdvantageOptions& advantage,
                                                             double temperature,
                                                             int64_t max_new_tokens,
                                                             comm::Collective* ranks,
                                                             bool shard_parameters) {
  TrainStep::UseThreads(options.num_threads);
  TrainStepSetup setup = {
      .dtype = options.dtype, .numerics = options.numerics, .rounding = options.cast.rounding,
      .temperature = temperature, .advantage = advantage, .ranks = ranks,
      .buckets = {.shard_parameters = shard_parameters},
      .checkpoint_activations = options.checkpoint_activations};
  TANDEM_ASSIGN_OR_RETURN(setup.config, ReadModelConfig(model_directory));
  if (options.numerics == Numerics::kExact) {
    TANDEM_RETURN_IF_ERROR(CheckInvariance(setup.config, ActiveInstructionSet()));
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadModelTensors(model_directory));
  TANDEM_ASSIGN_OR_RETURN(setup.weights, MatchModelTensors(setup.config, std::move(tensors)));
  TrainStepOptions step_options = options.step;
  int64_t& constant_length = step_options.loss.objective.constant_length;
  if (constant_length == 0) constant_length = max_new_tokens;
  if (step_options.loss.kl_coefficient > 0 || options.measure_reference_kl) {
    setup.reference_weights = setup.weights;
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TrainStep> step, TrainStep::Create(setup, step_options));
  return std::make_unique<PolicyLearner>(std::move(step), options.cast, std::move(setup.weights));
}

}  // namespace tandem::trainer
