// EngineForward: scores a capture's tokens with a healthy rollout engine in this process, under any
// weights, path, precision and claimed transforms. Free of protobuf and LibTorch.
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
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "rollout_server/engine/sampling/score_options.h"

namespace tandem::drift {

// Called with the name of the pass that is running, and the fraction of the work that is done.
using PassProgress = std::function<void(const std::string& what, double done)>;

// The columns of a SequenceScore for all tokens of a capture, [T]; NaN (ranks: -1) for tokens that
// were not asked for, or were given to the model between two turns. raw_logprobs and margins are left empty.
struct EngineScores : rollout::SequenceScore {
  EngineScores() = default;
  explicit EngineScores(int64_t num_tokens);
  // Copies the elements [begin, end) of `other` to the places from `to` on.
  void Take(const rollout::SequenceScore& other, int64_t begin, int64_t end, int64_t to);
  // Tokens of a completion that were given between two turns count as not asked for.
  void LeaveOutGiven(const offpolicy::Capture& capture, int64_t completion);
};

// Inputs of the forward pass that differ from the capture's.
struct EngineInputs {
  int32_t first_id = -1;  // replaces the first id of every prompt; -1: off
  // The segments of a completion [S]; empty: all positions use the weights of Install.
  std::function<std::vector<rollout::ScoreSegment>(int64_t)> segments;
};

struct EngineForwardOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  int64_t longest = 0;      // tokens of the longest sequence to score
  int64_t num_threads = 0;  // 0: the cores of the machine
  QuantisationOptions quantised = {};
  bool unmerged = false;  // applies adapters beside the weights of the model directory
};

class EngineForward {
 public:
  //   any error of Engine::Create
  static absl::StatusOr<std::unique_ptr<EngineForward>> Create(const std::string& model_directory,
                                                               const EngineForwardOptions& options);

  // From now on, scores under `tensors` (in ModelTensors order and the engine's dtype).
  absl::Status Install(std::vector<HostTensor> tensors);

  // Packs `tensors` for EngineInputs::segments.
  absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const {
    return engine_->Stage(std::move(tensors));
  }

  // The same in other number formats (Engine::StageAs), with the KV of this engine.
  absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> StageAs(
      const std::vector<HostTensor>& tensors, QuantisationPlan plan) const;

  // `adapter` beside the weights of the model directory; needs EngineForwardOptions::unmerged.
  absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> StageAdapter(
      const rollout::AdapterFactors& adapter) const {
    return engine_->StageAdapter(adapter);
  }
  bool unmerged() const { return engine_->unmerged(); }

  // Scores the completions `wanted` [S] (empty: all), with exactly the transforms of `options`.
  // `progress` is called after every few completions, with the number of tokens scored so far.
  absl::StatusOr<EngineScores> Score(const offpolicy::Capture& capture,
                                     const std::vector<bool>& wanted,
                                     const rollout::ScoreOptions& options,
                                     absl::FunctionRef<void(int64_t)> progress,
                                     const EngineInputs& inputs = {});

  DType weight_dtype() const { return engine_->weight_dtype(); }
  const ModelConfig& config() const { return engine_->config(); }
  const Tokenizer& tokenizer() const { return engine_->tokenizer(); }

 private:
  EngineForward(std::unique_ptr<rollout::Engine> engine, KvFormat kv)
      : engine_(std::move(engine)), kv_(kv) {}

  std::unique_ptr<rollout::Engine> engine_;
  const KvFormat kv_;
  int64_t version_ = 0;
};

// The transforms that the capture's sampling settings claim.
rollout::ScoreOptions ClaimedTransforms(const offpolicy::CapturedSampling& sampling);

// The number of tokens of the longest prompt and completion together.
int64_t LongestSequence(const offpolicy::Capture& capture);

}  // namespace tandem::drift
