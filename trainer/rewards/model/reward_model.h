// RewardModel: a reward model read from its directory (docs/preferences.md). Free of LibTorch.
//
//   outcome  LlamaForSequenceClassification (or Qwen2.., Qwen3..): score.weight [K, E] reads the
//            hidden state of a text's last token that is not padding
//   process  LlamaForTokenClassification: one score for each token, of which those at the ends of
//            steps are of use
//
// There is no lm_head. `tandem train-reward-model` writes such directories.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::trainer {

enum class RewardModelKind { kOutcome, kProcess };

struct RewardModel {
  RewardModelKind kind = RewardModelKind::kOutcome;
  ModelConfig config;               // of the trunk
  std::vector<HostTensor> weights;  // of the trunk, in ModelTensors order
  HostTensor head;                  // score.weight [K, E]

  int64_t num_heads() const { return head.spec.shape[0]; }
};

// Reads a directory of train-reward-model or transformers.
//   INVALID_ARGUMENT  it has no score.weight, or one of another width
//   UNIMPLEMENTED     score.bias is not zero
//   others of ReadModelConfig and ReadModelTensors
absl::StatusOr<RewardModel> ReadRewardModel(const std::string& directory);

}  // namespace tandem::trainer
