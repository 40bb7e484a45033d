// ScoreOptions, ScoreSequence, SequenceScore: what Engine::Score is asked for and what it gives
// back, as plain structs (protobuf stays in the services).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/model/forward_arithmetic.h"

namespace tandem::rollout {

enum class ScorePath {
  kPrefill,  // whole chunks at once
  kDecode,   // the prompt in chunks, then one token at a time through the KV cache: as the tokens
             // were drawn
};

// Each field is one factor that a rung of the ladder changes.
struct ScoreOptions {
  // The transforms that are claimed, as in SamplingParams, except that there is no greedy:
  // temperature >= 0.001.
  float temperature = 1.0f;
  int32_t top_k = 0;   // 0: off
  float top_p = 1.0f;  // 1: off
  float min_p = 0.0f;  // 0: off
  ScorePath path = ScorePath::kPrefill;
  bool alone = false;  // one sequence after the other; default: side by side, as far as steps and
                       // KV hold them
  ForwardArithmetic arithmetic;
  // Scores with the weights and the arithmetic that tokens are sampled with, injected faults
  // included, as a server with a real bug would; `arithmetic` is ignored then.
  bool as_served = false;
};

class StagedWeights;  // engine.h

// Positions from the end of the segment before up to `end` are computed under `weights`, staged by
// the same engine; later positions read the KV that leaves. Token t is predicted at position t - 1.
struct ScoreSegment {
  int64_t end = 0;
  const StagedWeights* weights = nullptr;
};

struct ScoreSequence {
  std::vector<int32_t> ids;       // [T], T >= 2
  int64_t num_prompt_tokens = 0;  // in [0, T): given, not drawn. 0: only the first id is given
  std::vector<ScoreSegment>
      segments;  // in order of end; positions after the last are of the live weights
};

// [T] each; element t is about token t given those before it. Elements that are not scored are 0:
// the first one, and those of the prompt, t < num_prompt_tokens.
struct SequenceScore {
  std::vector<float> logprobs;  // under the transforms, renormalised; -inf when they remove the id
  std::vector<float> raw_logprobs;  // of the untouched logits
  // Of the distribution under the transforms:
  std::vector<float> entropies;               // nats
  std::vector<float> logprob_second_moments;  // E[(log p)^2]
  std::vector<float> squared_probs;           // sum p^2
  std::vector<float> kept_mass;  // of the tempered distribution, what top-k, top-p and min-p leave
  // Of the logits:
  std::vector<float>
      margins;  // the largest less the largest of the others: how far off another greedy choice is
  std::vector<int32_t> ranks;  // ids with a larger logit than the token's: 0 is the greedy choice
  std::vector<float> gaps;     // the largest logit less the token's
  std::vector<float> mass_above;  // of those ids, in the tempered distribution before filters
};

// Checks ranges that need no model.
//   INVALID_ARGUMENT  names the field, the value and the range
absl::Status ValidateScoreOptions(const ScoreOptions& options);

}  // namespace tandem::rollout
