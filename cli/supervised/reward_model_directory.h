// Writes a reward model as a Hugging Face directory, which trainer/rewards/model/reward_model.h
// reads. Free of LibTorch.
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

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "trainer/rewards/model/reward_model.h"

namespace tandem::cli {

// Writes tensors, those of the trunk and score.weight last, as `dtype`, and the tokenizer files of
// `tokenizer_from`. Errors: those of WriteModelDirectory.
absl::Status WriteRewardModel(trainer::RewardModelKind kind, const ModelConfig& config,
                              std::vector<HostTensor> tensors, const std::string& tokenizer_from,
                              const std::string& out, DType dtype);

}  // namespace tandem::cli
