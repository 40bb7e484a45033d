#include "cli/tools/trainer_scorer.h"

#include <ATen/core/Tensor.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/policy.h"

namespace tandem::cli {

struct TrainerScorer::Impl {
  std::unique_ptr<trainer::Policy> policy;
};

TrainerScorer::TrainerScorer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainerScorer::~TrainerScorer() = default;

absl::StatusOr<std::unique_ptr<TrainerScorer>> TrainerScorer::Create(
    const std::string& model_directory, bool bf16, Numerics numerics) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model_directory));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, ReadModelTensors(model_directory));
  TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(config, std::move(tensors)));
  auto impl = std::make_unique<Impl>();
  const auto dtype = bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32;
  TANDEM_ASSIGN_OR_RETURN(impl->policy,
                          trainer::Policy::Create(config, tensors, dtype, false, numerics));
  return std::unique_ptr<TrainerScorer>(new TrainerScorer(std::move(impl)));
}

absl::StatusOr<std::vector<float>> TrainerScorer::Score(std::span<const int32_t> token_ids,
                                                        double temperature) {
  const ModelConfig& config = impl_->policy->config();
  const int64_t num_tokens = static_cast<int64_t>(token_ids.size());
  if (num_tokens < 2) {
    return absl::InvalidArgumentError(absl::StrCat(num_tokens, " ids; scoring wants at least 2"));
  }
  if (num_tokens > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_tokens, " ids are over the model's context of ", config.max_position_embeddings));
  }
  for (size_t t = 0; t < token_ids.size(); ++t) {
    if (token_ids[t] < 0 || token_ids[t] >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("id ", token_ids[t], " at position ", t,
                                                     " is outside the vocabulary of ",
                                                     config.vocab_size));
    }
  }
  const trainer::PackedRow row = trainer::SingleSequenceRow(token_ids);
  TANDEM_ASSIGN_OR_RETURN(const trainer::TokenScores scores,
                          impl_->policy->Score(row, temperature, /*with_gradient=*/false));
  const float* logprobs = scores.logprobs.const_data_ptr<float>();  // contiguous [T]
  std::vector<float> result(logprobs, logprobs + num_tokens);
  result[0] = 0;
  return result;
}

}  // namespace tandem::cli
