#include "cli/model/local_policy.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "common/tensor/host_tensor_conversion.h"
#include "common/tensor/torch_status.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/policy/policy.h"

namespace tandem::cli {
namespace {

constexpr int64_t kMaxRowTokens = 4096;  // bounds the activations held for one backward pass

absl::StatusOr<std::unique_ptr<trainer::Policy>> LoadPolicy(const std::string& model_directory,
                                                            bool bf16, bool with_gradient,
                                                            Numerics numerics) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model_directory));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, ReadModelTensors(model_directory));
  TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(config, std::move(tensors)));
  const auto dtype = bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32;
  return trainer::Policy::Create(config, tensors, dtype, with_gradient, numerics);
}

absl::StatusOr<std::vector<float>> ScoreSequence(trainer::Policy& policy,
                                                 std::span<const int32_t> token_ids,
                                                 double temperature) {
  const ModelConfig& config = policy.config();
  const int64_t num_tokens = static_cast<int64_t>(token_ids.size());
  if (num_tokens < 2) {
    return InvalidArgument(num_tokens, " ids; scoring wants at least 2");
  }
  if (num_tokens > config.max_position_embeddings) {
    return InvalidArgument(num_tokens, " ids are over the model's context of ",
                           config.max_position_embeddings);
  }
  for (size_t t = 0; t < token_ids.size(); ++t) {
    if (token_ids[t] < 0 || token_ids[t] >= config.vocab_size) {
      return InvalidArgument("id ", token_ids[t], " at position ", t,
                             " is outside the vocabulary of ", config.vocab_size);
    }
  }
  const trainer::PackedRow row = trainer::SingleSequenceRow(token_ids);
  TANDEM_ASSIGN_OR_RETURN(const trainer::TokenScores scores,
                          policy.Score(row, temperature, /*with_gradient=*/false));
  const float* logprobs = scores.logprobs.const_data_ptr<float>();  // contiguous [T]
  std::vector<float> result(logprobs, logprobs + num_tokens);
  result[0] = 0;
  return result;
}

}  // namespace

struct SupervisedTraining::Impl {
  std::unique_ptr<trainer::Policy> policy;
  std::unique_ptr<trainer::AdamW> optimizer;
};

SupervisedTraining::SupervisedTraining(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SupervisedTraining::~SupervisedTraining() = default;

absl::StatusOr<std::unique_ptr<SupervisedTraining>> SupervisedTraining::Create(
    const std::string& model_directory, bool bf16, const trainer::OptimizerOptions& options) {
  auto impl = std::make_unique<Impl>();
  TANDEM_ASSIGN_OR_RETURN(
      impl->policy, LoadPolicy(model_directory, bf16, /*with_gradient=*/true, Numerics::kFast));
  impl->optimizer = std::make_unique<trainer::AdamW>(&impl->policy->parameters(), options);
  return std::unique_ptr<SupervisedTraining>(new SupervisedTraining(std::move(impl)));
}

absl::StatusOr<SupervisedStep> SupervisedTraining::Step(
    std::span<const SupervisedExample* const> batch) {
  SupervisedStep step;
  for (const SupervisedExample* example : batch) {
    step.num_tokens += static_cast<int64_t>(example->completion.size());
  }
  for (size_t begin = 0; begin < batch.size();) {
    std::vector<trainer::GroupTokens> groups;
    for (int64_t num_tokens = 0; begin < batch.size(); ++begin) {
      const SupervisedExample& example = *batch[begin];
      num_tokens += static_cast<int64_t>(example.prompt.size() + example.completion.size());
      if (!groups.empty() && num_tokens > kMaxRowTokens) break;
      groups.push_back({.prompt = example.prompt, .completions = {example.completion}});
    }
    TANDEM_ASSIGN_OR_RETURN(const trainer::PackedRow row, trainer::PackRow(groups));
    TANDEM_ASSIGN_OR_RETURN(const trainer::TokenScores scores,
                            impl_->policy->Score(row, 1.0, /*with_gradient=*/true));
    TANDEM_ASSIGN_OR_RETURN(const double loss, CatchTorch("supervised loss", [&] {
                              // Log-probs are 0 where there is no target, so this sums over the
                              // completion tokens.
                              const at::Tensor mean = scores.logprobs.sum().mul(
                                  -1.0 / static_cast<double>(step.num_tokens));
                              mean.backward();
                              return mean.item<double>();
                            }));
    step.loss += loss;
  }
  if (!std::isfinite(step.loss)) {
    return Internal("the loss is ", step.loss, ": try a smaller learning rate");
  }
  TANDEM_ASSIGN_OR_RETURN(const trainer::OptimizerUpdate update, CatchTorch("optimizer", [&] {
                            return impl_->optimizer->Step(impl_->optimizer->SquaredGradNorm());
                          }));
  impl_->policy->WeightsChanged();
  step.grad_norm = update.grad_norm;
  step.learning_rate = update.learning_rate;
  return step;
}

absl::StatusOr<std::vector<HostTensor>> SupervisedTraining::Weights() const {
  std::vector<HostTensor> tensors;
  for (const trainer::NamedParameter& parameter : impl_->policy->parameters()) {
    TANDEM_ASSIGN_OR_RETURN(tensors.emplace_back(),
                            ToHostTensor(parameter.name, parameter.master.detach()));
  }
  return tensors;
}

absl::StatusOr<TrainerScorer> LoadTrainerScorer(const std::string& model_directory, bool bf16,
                                                Numerics numerics) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<trainer::Policy> policy,
                          LoadPolicy(model_directory, bf16, /*with_gradient=*/false, numerics));
  return [policy](std::span<const int32_t> token_ids, double temperature) {
    return ScoreSequence(*policy, token_ids, temperature);
  };
}

}  // namespace tandem::cli
