// MakeScoreRun: computes the scores of given ids by the engine's own forward, KV cache and sampler,
// in chunks (prefill) or one token a step (decode), many sequences together or one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/forward/token_runner.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/engine/schedule/scheduler.h"

namespace tandem::rollout {

// What the engine serves now.
struct LiveWeights {
  WeightVersion version;
  uint64_t num_installs = 0;  // tells two installs of one version apart
};

// What all score runs of an engine use. The objects must outlive the runs.
struct ScoreContext {
  TokenRunner* runner = nullptr;
  const StagedWeights* weights = nullptr;  // valid until `live` changes
  const LiveWeights* live = nullptr;
  Scheduler* scheduler = nullptr;           // lends free blocks
  int64_t max_sequences = 0;                // decoded together
  int64_t max_step_tokens = 0;              // computed in one step, prompt chunks included
  const AdapterWeights* adapter = nullptr;  // of all sequences; null: that of the weights
};

//   INVALID_ARGUMENT  T < 2 or over the context, num_prompt_tokens outside [0, T), an id outside
//                     the vocabulary, segments whose ends do not rise or whose weights are not from
//                     `runner`
absl::Status CheckSequences(const std::vector<ScoreSequence>& sequences, const ModelConfig& config,
                            const TokenRunner& runner);

// The run for sequences that CheckSequences accepts and options that ValidateScoreOptions accepts.
std::unique_ptr<ScoreRun> MakeScoreRun(const ScoreContext& context,
                                       std::vector<ScoreSequence> sequences,
                                       const ScoreOptions& options);

}  // namespace tandem::rollout
