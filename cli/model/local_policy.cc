#include "cli/model/local_policy.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/lora/adapted_model.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/policy.h"

namespace tandem::cli {
namespace {

absl::StatusOr<std::unique_ptr<trainer::Policy>> LoadPolicy(const std::string& model_directory,
                                                            bool bf16, Numerics numerics,
                                                            const QuantisationOptions& quantised) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model_directory));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, ReadAdaptedTensors(model_directory));
  TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(config, std::move(tensors)));
  const auto dtype = bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32;
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan, MakeQuantisationPlan(config, quantised));
  return trainer::Policy::Create(config, tensors, dtype, /*trainable=*/false, numerics,
                                 Device::kCpu, {plan, {}});
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

absl::StatusOr<TrainerScorer> LoadTrainerScorer(const std::string& model_directory, bool bf16,
                                                Numerics numerics,
                                                const QuantisationOptions& quantised) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<trainer::Policy> policy,
                          LoadPolicy(model_directory, bf16, numerics, quantised));
  return [policy](std::span<const int32_t> token_ids, double temperature) {
    return ScoreSequence(*policy, token_ids, temperature);
  };
}

}  // namespace tandem::cli
