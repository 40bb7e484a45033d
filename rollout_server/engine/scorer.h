// ScoreSequences: log-probs of given ids through the engine's own forward and KV cache, whole sequences at
// once (prefill) or one token a step (decode). The ladder's hand.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_SCORER_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_SCORER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/model_runner.h"
#include "rollout_server/engine/scheduler.h"

namespace tandem::rollout {

struct ScoreContext {
  ModelRunner* runner = nullptr;
  const ModelWeights* weights = nullptr;
  Scheduler* scheduler = nullptr;  // lends blocks nobody holds
  int64_t max_sequences = 0;       // scored side by side in decode
  int64_t max_step_tokens = 0;     // prefill chunk
};

// Element t of each result is log p(token t | tokens before t) at `temperature`; element 0 is 0. The ids
// were checked by the caller.
//   RESOURCE_EXHAUSTED  a sequence needs more KV blocks than nobody holds
absl::StatusOr<std::vector<std::vector<float>>> ScoreSequences(
    const ScoreContext& context, const std::vector<std::vector<int32_t>>& sequences,
    float temperature, ScorePath path);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_SCORER_H_
