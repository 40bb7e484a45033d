#include "trainer/policy_learner.h"

#include <utility>

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

// F32 masters as a push sends them to a bf16 server.
std::vector<HostTensor> AsBf16(const std::vector<HostTensor>& masters, Rounding rounding) {
  std::vector<HostTensor> cast;
  for (const HostTensor& tensor : masters) {
    const int64_t count = tensor.spec.num_elements();
    auto values = std::make_shared<std::vector<uint16_t>>(static_cast<size_t>(count));
    CastToBf16(tensor.spec.name, reinterpret_cast<const float*>(tensor.bytes.data()), count, rounding,
               values->data());
    cast.push_back({{tensor.spec.name, DType::kBF16, tensor.spec.shape},
                    std::as_bytes(std::span(*values)),
                    values});
  }
  return cast;
}

class PolicyLearner : public Learner {
 public:
  // `start`: views of the model directory's tensors, in ModelTensors order.
  PolicyLearner(std::unique_ptr<TrainStep> step, const WeightCastOptions& cast,
                std::vector<HostTensor> start)
      : step_(std::move(step)), caster_(cast), start_(std::move(start)) {}

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
    const std::vector<HostTensor> masters =
        weights.masters == nullptr ? step_->Masters() : *weights.masters;
    return step_->Score(groups, weights.as_bf16 ? AsBf16(masters, weights.rounding) : masters,
                        weights.rounding);
  }

  absl::StatusOr<double> DistanceFromStart() const override { return step_->DistanceFrom(start_); }

  absl::StatusOr<CastWeights> Cast(DType dtype) override {
    // Weights that were never updated are cast as a server casts them when it loads the directory:
    // then it has them already, and the first push is not made.
    const std::vector<HostTensor> masters = step_->Masters();
    return step_->num_updates() == 0 ? caster_.CastNearest(masters, dtype)
                                     : caster_.Cast(masters, dtype);
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
  WeightCaster caster_;
  const std::vector<HostTensor> start_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Learner>> CreatePolicyLearner(const std::string& model_directory,
                                                             const LearnerOptions& options,
                                                             const AdvantageOptions& advantage,
                                                             double temperature,
                                                             int64_t max_new_tokens,
                                                             comm::Collective* ranks) {
  TrainStep::UseThreads(options.num_threads);
  TrainStepSetup setup = {
      .dtype = options.dtype, .numerics = options.numerics, .rounding = options.cast.rounding,
      .temperature = temperature, .advantage = advantage, .ranks = ranks};
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
