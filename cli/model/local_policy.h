// The trainer's policy in this process, behind a header free of LibTorch: TrainerScorer for `tandem
// score --engine trainer`, and SupervisedTraining for `tandem sft`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/numerics.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer/optimizer_options.h"

namespace tandem::cli {

// Log-probs of a whole sequence, [T]: element t is the log-prob of token t given the tokens before
// it, under logits / temperature. Element 0 is 0. Use from one thread.
//   INVALID_ARGUMENT  T < 2, an id is outside the vocabulary, or T is over the context
using TrainerScorer = std::function<absl::StatusOr<std::vector<float>>(
    std::span<const int32_t> token_ids, double temperature)>;

// Errors are those of ReadModelConfig, ReadModelTensors and Policy::Create.
absl::StatusOr<TrainerScorer> LoadTrainerScorer(const std::string& model_directory, bool bf16,
                                                Numerics numerics);

struct SupervisedExample {
  std::vector<int32_t> prompt;      // [P], P >= 1
  std::vector<int32_t> completion;  // [T], ends with the end token
};

struct SupervisedStep {
  double loss = 0;  // mean negative log-prob of a completion token, in nats
  int64_t num_tokens = 0;
  double grad_norm = 0;
  double learning_rate = 0;
};

// Supervised training on completions. Use from one thread.
class SupervisedTraining {
 public:
  // Errors are those of ReadModelConfig, ReadModelTensors and Policy::Create.
  static absl::StatusOr<std::unique_ptr<SupervisedTraining>> Create(
      const std::string& model_directory, bool bf16, const trainer::OptimizerOptions& options);
  ~SupervisedTraining();

  // Makes one optimizer update on the mean loss over all completion tokens of `batch`.
  //   INTERNAL  a kernel failed, or the loss is not finite
  absl::StatusOr<SupervisedStep> Step(std::span<const SupervisedExample* const> batch);

  // The fp32 masters. The tensors point into live weights.
  absl::StatusOr<std::vector<HostTensor>> Weights() const;

 private:
  struct Impl;
  explicit SupervisedTraining(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cli
