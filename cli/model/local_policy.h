// SupervisedTraining: the trainer's policy and optimizer on given completions, behind a header free
// of LibTorch. `tandem sft` uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/model/sft_data.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer/optimizer_options.h"

namespace tandem::cli {

struct SupervisedStep {
  double loss = 0;  // mean negative log-prob of a completion token, nats
  int64_t num_tokens = 0;
  double grad_norm = 0;
  double learning_rate = 0;
};

// Use from one thread.
class SupervisedTraining {
 public:
  // Errors: those of ReadModelConfig, ReadModelTensors and Policy::Create.
  static absl::StatusOr<std::unique_ptr<SupervisedTraining>> Create(
      const std::string& model_directory, bool bf16, const trainer::OptimizerOptions& options);
  ~SupervisedTraining();

  // One optimizer update on the mean loss over all completion tokens of `batch`.
  //   INTERNAL  a kernel failed, or the loss is not finite
  absl::StatusOr<SupervisedStep> Step(std::span<const SupervisedExample* const> batch);

  // The masters, fp32; they point into live weights.
  absl::StatusOr<std::vector<HostTensor>> Weights() const;
  const ModelConfig& config() const;

 private:
  struct Impl;
  explicit SupervisedTraining(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cli
