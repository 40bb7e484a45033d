// TrainerScorer: log-probs of whole sequences through the trainer's own forward, behind a header
// free of LibTorch. `tandem score --engine trainer` uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"

namespace tandem::cli {

// Use from one thread.
class TrainerScorer {
 public:
  // Errors: those of ReadModelConfig, ReadModelTensors and Policy::Create.
  static absl::StatusOr<std::unique_ptr<TrainerScorer>> Create(const std::string& model_directory,
                                                               bool bf16,
                                                               Numerics numerics = Numerics::kFast);
  ~TrainerScorer();

  // [T]: element t is of token t given those before it, under logits / temperature; element 0 is 0.
  //   INVALID_ARGUMENT  T < 2, an id outside the vocabulary, over the context
  absl::StatusOr<std::vector<float>> Score(std::span<const int32_t> token_ids, double temperature);

 private:
  struct Impl;
  explicit TrainerScorer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cli
