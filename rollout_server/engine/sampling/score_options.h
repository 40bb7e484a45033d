// What Engine::StartScore takes and gives back: ScoreOptions and ScoreSequence, and a ScoreRun that
// ends with SequenceScores. Plain structs (protobuf stays in the services).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/forward_arithmetic.h"
#include "rollout_server/engine/sampling/sampling_params.h"

namespace tandem::rollout {

// Tokens of one score of a caller, which is computed in slices: this bounds its memory and its answer.
inline constexpr int64_t kMaxScoreTokens = 65536;

enum class ScorePath {
  kPrefill,  // whole chunks at once
  kDecode,   // the prompt in chunks, then one token at a time through the KV cache, as in sampling
};

// Each field is one factor that an ablation step changes.
struct ScoreOptions {
  // The claimed transforms, as in SamplingParams, but temperature is at least 0.001: there is no
  // greedy score.
  float temperature = 1.0f;
  int32_t top_k = 0;   // 0: off
  float top_p = 1.0f;  // 1: off
  float min_p = 0.0f;  // 0: off
  ScorePath path = ScorePath::kPrefill;
  bool alone = false;   // one sequence after the other; else as many at once as steps and KV hold
  std::string adapter;  // as GroupRequest::adapter
  ForwardArithmetic arithmetic;
  // Scores with the weights and the arithmetic that tokens are sampled with, injected faults
  // included, as a server with a real bug would; `arithmetic` is ignored then.
  bool as_served = false;
  int32_t top_logprobs = 0;  // how many of the most likely ids to record for each token
};

class StagedWeights;  // staged_weights.h

// Positions from the end of the segment before up to `end` are computed under `weights`, staged by
// the same engine; later positions attend to the KV that this wrote. Token t is predicted at
// position t - 1.
struct ScoreSegment {
  int64_t end = 0;
  const StagedWeights* weights = nullptr;
};

struct ScoreSequence {
  std::vector<int32_t> ids;       // [T], T >= 2
  int64_t num_prompt_tokens = 0;  // in [0, T): given, not sampled. 0: only the first id is given
  // In order of end; positions after the last segment are computed under the live weights.
  std::vector<ScoreSegment> segments;
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
  // Retained probability mass: the share of the tempered distribution that top-k, top-p and min-p
  // leave.
  std::vector<float> kept_mass;
  // Of the logits:
  std::vector<float> margins;  // the largest less the second: how far off another greedy choice is
  std::vector<int32_t> ranks;  // ids with a larger logit than the token's: 0 is the greedy choice
  std::vector<float> gaps;     // the largest logit less the token's
  std::vector<float> mass_above;  // of the ids counted in ranks, in the tempered distribution
  // With options.top_logprobs, as in a completion; empty lists for tokens that are not scored.
  std::vector<std::vector<TopLogprob>> top;
};

// Checks ranges that need no model.
//   INVALID_ARGUMENT  names the field, the value and the range
absl::Status ValidateScoreOptions(const ScoreOptions& options);

enum class ScoreProgress {
  kMore,   // call Step again
  kWaits,  // nothing was computed: other runs hold the KV that it needs; call Step again later
  kDone,   // Take the scores
};

// ScoreRun: a score that is computed slice by slice, so that decode steps, weight pushes and
// cancellation come in between. Made by Engine::StartScore. It computes under one version of the
// weights from the first slice to the last.
//
// Use from the engine's thread only, and destroy it before the engine: it gives back the KV that it
// was lent.
class ScoreRun {
 public:
  virtual ~ScoreRun() = default;

  // Computes one slice: at most 256 tokens of prompts, or a token of each sequence. After an error
  // only destroy it.
  //   ABORTED             new weights were installed since the run began
  //   RESOURCE_EXHAUSTED  a sequence needs more KV than groups leave, or they took it back again
  //                       and again
  //   DATA_LOSS           a logit is NaN or +inf
  //   UNIMPLEMENTED, INTERNAL  as TokenRunner::Run
  virtual absl::StatusOr<ScoreProgress> Step() = 0;

  // One for each sequence, after kDone.
  virtual std::vector<SequenceScore> Take() = 0;
};

}  // namespace tandem::rollout
