// TrainerForward: a capture's tokens through the trainer's own forward, each completion in a row of
// its own or packed as in training, under any weights; and back again, for gradients. Free of
// LibTorch in its header.
//
// Use from one thread. Memory: the weights in fp32, and in bf16 their cast; trainable: gradients in
// fp32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  int64_t row_tokens = 0;  // completions of a group share a row of at most so many; 0: one each
  bool trainable = false;  // for Differentiate and ScoreWay::as_update
};

// As the trainer of `capture` computed its proximal log-probs.
TrainerForwardOptions RecordedTrainer(const offpolicy::Capture& capture, int64_t row_tokens);

// What of a score is not as a proximal pass has it.
struct ScoreWay {
  double temperature = 0;  // 0: the capture's
  bool as_update = false;  // with the graph that an update's backward pass needs
};
struct TrainerScores {
  std::vector<float> logprobs, entropies;  // [T]; NaN where not scored
};

// Told after every row: tokens scored so far.
using ScoreProgress = absl::FunctionRef<void(int64_t tokens)>;

class TrainerForward {
 public:
  // Errors: those of Policy::Create.
  static absl::StatusOr<std::unique_ptr<TrainerForward>> Create(
      const ModelConfig& config, const std::vector<HostTensor>& tensors,
      const TrainerForwardOptions& options);
  ~TrainerForward();

  // [T] log-probs at the capture's temperature, over the supports it carries; NaN for the
  // completions that `wanted` [S] leaves out (empty: all are wanted).
  //   INVALID_ARGUMENT  an id outside the vocabulary, a completion over the context
  absl::StatusOr<std::vector<float>> Score(const offpolicy::Capture& capture,
                                           const std::vector<bool>& wanted, ScoreProgress progress);

  // The same in another way, with entropies.
  absl::StatusOr<TrainerScores> ScoreIn(const ScoreWay& way, const offpolicy::Capture& capture,
                                        const std::vector<bool>& wanted, ScoreProgress progress);

  // The gradient of sum_t direction[t] log pi[t] over completion `s`, alone in its row; direction
  // is [tokens of s]. `take` gets it parameter by parameter, in the order of the tensors of Create,
  // each valid during the call. The result is the completion's log-probs. Needs `trainable`.
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
