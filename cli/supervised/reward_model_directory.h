// A reward model as a Hugging Face directory. Free of LibTorch.
//
//   outcome  LlamaForSequenceClassification (or Qwen2.., Qwen3..): score.weight [K, E] reads the
//            hidden state of a text's last token that is not padding
//   process  LlamaForTokenClassification: one score for each token, of which those at the ends of
//            steps are of use. transformers has a bias in this class, which is written as zeros
//
// There is no lm_head. The padding token must not be an end token: transformers reads the score at
// the last token that is not padding, which would be the one before the end token that this model
// is trained on. So another token is named for it, in config.json and in the tokenizer's files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::cli {

enum class RewardModelKind { kOutcome, kProcess };

struct RewardModel {
  RewardModelKind kind = RewardModelKind::kOutcome;
  ModelConfig config;               // of the trunk
  std::vector<HostTensor> weights;  // of the trunk, in ModelTensors order
  HostTensor head;                  // score.weight [K, E]

  int64_t num_heads() const { return head.spec.shape[0]; }
};

// Reads a directory that WriteRewardModel or transformers wrote.
//   INVALID_ARGUMENT  it has no score.weight, or one of another width
//   UNIMPLEMENTED     score.bias is not zero
//   others of ReadModelConfig and ReadModelTensors
absl::StatusOr<RewardModel> ReadRewardModel(const std::string& directory);

// Writes tensors, those of the trunk and score.weight last, as `dtype`, and the tokenizer files of
// `tokenizer_from`. Errors: those of WriteModelDirectory.
absl::Status WriteRewardModel(RewardModelKind kind, const ModelConfig& config,
                              std::vector<HostTensor> tensors, const std::string& tokenizer_from,
                              const std::string& out, DType dtype);

}  // namespace tandem::cli
