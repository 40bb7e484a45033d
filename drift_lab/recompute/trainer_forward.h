// TrainerForward: scores a capture's tokens with the trainer's forward pass, each completion in a
// row of its own or packed as in training, under any weights, and computes gradients. The header is
// free of LibTorch.
//
// Use from one thread. Memory: the weights in fp32, their cast with bf16, and fp32 gradients if
// trainable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/weights/host_tensor.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::drift {

struct TrainerForwardOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  Numerics numerics = Numerics::kFast;
  trainer::Rounding rounding = trainer::Rounding::kNearest;  // of the weights in Numerics::kExact
  int64_t row_tokens = 0;         // most tokens of a row that completions share; 0: one each
  bool trainable = false;         // for Differentiate and ScoreWay::as_update
  std::string weights = "dtype";  // CapturedTrainer::weights
};

// The options with which the trainer of `capture` computed its proximal log-probs.
TrainerForwardOptions RecordedTrainer(const offpolicy::Capture& capture, int64_t row_tokens);
// The most tokens of a row of that trainer.
int64_t PackedRowTokens(const offpolicy::Capture& capture);

// How a score differs from a proximal pass.
struct ScoreWay {
  double temperature = 0;  // 0: the capture's
  bool as_update = false;  // with the autograd graph that the backward pass of an update needs
};
struct TrainerScores {
  std::vector<float> logprobs, entropies;  // [T]; NaN where not scored
};

// The largest distance of two sets of scores, over the tokens where both are finite; `num_tokens`
// gets their number.
double MaxAbsDifference(const std::vector<float>& a, const std::vector<float>& b,
                        int64_t* num_tokens = nullptr);

// Called after every row with the number of tokens scored so far.
using ScoreProgress = absl::FunctionRef<void(int64_t tokens)>;

class TrainerForward {
 public:
  //   any error of Policy::Create
  static absl::StatusOr<std::unique_ptr<TrainerForward>> Create(
      const ModelConfig& config, const std::vector<HostTensor>& tensors,
      const TrainerForwardOptions& options);
  ~TrainerForward();

  // Log-probs [T] at the capture's temperature, over the supports that it carries; NaN for
  // completions that are not in `wanted` [S] (empty: all are).
  //   INVALID_ARGUMENT  an id outside the vocabulary, or a completion longer than the context
  absl::StatusOr<std::vector<float>> Score(const offpolicy::Capture& capture,
                                           const std::vector<bool>& wanted, ScoreProgress progress);

  // The same as `way` says, and entropies.
  absl::StatusOr<TrainerScores> ScoreIn(const ScoreWay& way, const offpolicy::Capture& capture,
                                        const std::vector<bool>& wanted, ScoreProgress progress);

  // Computes the gradient of sum_t direction[t] log pi[t] over completion `s`, alone in its row;
  // direction is [tokens of s]. `take` is called with the gradient of each parameter, in the order
  // of the tensors of Create; a span is valid during its call. Returns the completion's log-probs.
  // Needs `trainable`.
  //   INVALID_ARGUMENT  as Score
  //   INTERNAL          a kernel failed
  absl::StatusOr<std::vector<float>> Differentiate(
      const offpolicy::Capture& capture, int64_t s, std::span<const double> direction,
      absl::FunctionRef<void(std::span<const float> gradient)> take);

  int64_t num_parameters() const;

 private:
  struct Impl;
  explicit TrainerForward(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::drift
