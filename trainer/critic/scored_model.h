// ScoredModel: a model directory with a head of scores in place of the one over the vocabulary, as
// reward models have it: transformers' ForSequenceClassification, and ForTokenClassification for
// scores of each token. What a critic starts from, and what rewards completions. Free of LibTorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::trainer {

// Names of tensors and, in "architectures" of config.json, of tasks, as transformers has them.
inline constexpr char kScoreBias[] = "score.bias";
inline constexpr char kSequenceTask[] = "ForSequenceClassification";
inline constexpr char kTokenTask[] = "ForTokenClassification";
inline constexpr char kCausalTask[] = "ForCausalLM";

struct ScoredModel {
  ModelConfig config;               // of the trunk, which has no head over the vocabulary
  std::vector<HostTensor> weights;  // of the trunk, in ModelTensors order
  std::optional<HostTensor> head;   // score.weight [K, E]; none: a language model
  bool of_tokens = false;           // ForTokenClassification
};

// The config of a language model, or of the trunk of a scored one. ReadModelConfig refuses the
// latter, so that nothing serves a reward model as a language model.
// Errors: those of ReadModelConfig.
absl::StatusOr<ModelConfig> ReadTrunkConfig(const std::string& directory);

// Moves score.weight, if there is one, from the tensors of a directory to `head`.
//   UNIMPLEMENTED  score.bias is not zero
absl::Status TakeHead(const std::string& directory, std::vector<HostTensor>& tensors,
                      std::optional<HostTensor>& head);

// Reads either; the head over the vocabulary of a language model is left out.
//   INVALID_ARGUMENT  a score.weight of another width than the model
//   UNIMPLEMENTED     score.bias is not zero
//   others of ReadModelConfig and ReadModelTensors
absl::StatusOr<ScoredModel> ReadScoredModel(const std::string& directory);

}  // namespace tandem::trainer
