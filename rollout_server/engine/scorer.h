// MakeScoreRun: given ids through the engine's own forward, KV cache and sampler, in whole chunks
// (prefill) or one token a step (decode), side by side or alone. The ladder's hand.
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

// What all runs of an engine use; it outlives them.
struct ScoreContext {
  TokenRunner* runner = nullptr;
  const StagedWeights* weights = nullptr;  // good until `live` changes
  const LiveWeights* live = nullptr;
  Scheduler* scheduler = nullptr;  // lends blocks nobody holds
  int64_t max_sequences = 0;       // decoded side by side
  int64_t max_step_tokens = 0;     // computed in one step, prompt chunks included
};

//   INVALID_ARGUMENT  T < 2 or over the context, num_prompt_tokens outside [0, T), an id outside
//                     the vocabulary, segments that do not rise or whose weights are not of
//                     `runner`
absl::Status CheckSequences(const std::vector<ScoreSequence>& sequences, const ModelConfig& config,
                            const TokenRunner& runner);

// Of sequences that CheckSequences accepts, under options that ValidateScoreOptions accepts.
std::unique_ptr<ScoreRun> MakeScoreRun(const ScoreContext& context,
                                       std::vector<ScoreSequence> sequences,
                                       const ScoreOptions& options);

}  // namespace tandem::rollout
