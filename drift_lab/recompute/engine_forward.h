// EngineForward: a capture's tokens through the rollout engine, honest and in this process, under
// any weights, path, precision and claimed transforms. Free of protobuf and LibTorch.
//
// Use from one thread. Memory: an engine with two versions of the weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/sampling/score_options.h"

namespace tandem::drift {

// [T] of the capture; NaN for tokens that were not asked for. Meanings: rollout::SequenceScore.
struct EngineScores {
  std::vector<float> logprobs, entropies, second_moments, squared_probs, kept_mass, gaps,
      mass_above;
  std::vector<int32_t> ranks;

  EngineScores() = default;
  explicit EngineScores(int64_t num_tokens);
  // Takes tokens [begin, end) from `other`.
  void Take(const EngineScores& other, int64_t begin, int64_t end);
};

// What of the forward's inputs is not as the capture has it.
struct EngineInputs {
  int32_t first_id = -1;  // computed in place of every prompt's first id; -1: off
  // Of a completion [S]; empty: all positions are of the weights of Install.
  std::function<std::vector<rollout::ScoreSegment>(int64_t)> segments;
};

class EngineForward {
 public:
  // Errors: those of Engine::Create. `longest`: tokens of the longest sequence to score.
  // `num_threads`: 0 for the cores of the machine.
  static absl::StatusOr<std::unique_ptr<EngineForward>> Create(const std::string& model_directory,
                                                               ComputeDType dtype, int64_t longest,
                                                               int64_t num_threads = 0);

  // Scores under `tensors` from here on (ModelTensors order, the engine's dtype).
  absl::Status Install(std::vector<HostTensor> tensors);

  // Packs them for EngineInputs::segments.
  absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const {
    return engine_->Stage(std::move(tensors));
  }

  // `wanted` [S]: completions to score; empty: all. The transforms of `options` are used as they
  // are. progress(n) after every few completions: tokens scored so far.
  absl::StatusOr<EngineScores> Score(const offpolicy::Capture& capture,
                                     const std::vector<bool>& wanted,
                                     const rollout::ScoreOptions& options,
                                     absl::FunctionRef<void(int64_t)> progress,
                                     const EngineInputs& inputs = {});

  DType weight_dtype() const { return engine_->weight_dtype(); }
  const ModelConfig& config() const { return engine_->config(); }
  const Tokenizer& tokenizer() const { return engine_->tokenizer(); }

 private:
  explicit EngineForward(std::unique_ptr<rollout::Engine> engine) : engine_(std::move(engine)) {}

  std::unique_ptr<rollout::Engine> engine_;
  int64_t version_ = 0;
};

// What the capture's sampling claims.
rollout::ScoreOptions ClaimedTransforms(const offpolicy::CapturedSampling& sampling);

// Tokens of the longest prompt and completion together.
int64_t LongestSequence(const offpolicy::Capture& capture);

}  // namespace tandem::drift
