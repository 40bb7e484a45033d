// ScoreSequences: given ids through the engine's own forward, KV cache and sampler, in whole chunks
// (prefill) or one token a step (decode), side by side or alone. The ladder's hand.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_SCORER_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_SCORER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/scheduler.h"
#include "rollout_server/engine/score_options.h"
#include "rollout_server/engine/token_runner.h"

namespace tandem::rollout {

struct ScoreContext {
  TokenRunner* runner = nullptr;
  const StagedWeights* weights = nullptr;
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
//   RESOURCE_EXHAUSTED  a sequence needs more KV blocks than nobody holds
//   INTERNAL            a logit is NaN or +inf; and what TokenRunner::Run says
absl::StatusOr<std::vector<SequenceScore>> ScoreSequences(
    const ScoreContext& context, const std::vector<ScoreSequence>& sequences,
    const ScoreOptions& options);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_SCORER_H_
