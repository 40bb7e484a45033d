// Sampler: one row of logits to one token, with everything recorded about the draw in the same pass
// over the logits (stage 2); and one row and a given token to the same record. Pure.
//
// Order of transforms, as transformers' processors: min_new_tokens (stop ids to -inf), temperature,
// top-k, top-p, min-p. With p = softmax(logits / T) over the kept support, renormalised:
//   behaviour = log p(a),  entropy = -sum p log p,  second moment = sum p (log p)^2
//   raw = log softmax(untouched logits)(a)
//   kept mass = what of softmax(logits / T) the support has
// The token is the first id, in id order, at which the cumulative p exceeds the uniform.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/engine/sampling/score_options.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

struct SampledToken {
  int32_t id = 0;
  float behaviour_logprob = 0;
  float raw_logprob = 0;
  float entropy = 0;                // nats
  float logprob_second_moment = 0;  // E[(log p)^2]
  float kept_mass = 1;
  std::vector<int32_t> support;  // rising ids; only with params.return_support and filters on
  std::vector<TopLogprob> top;   // params.top_logprobs most likely ids, likeliest first
};

// Draws from `logits` [V] fp32 with `uniform` in (0, 1). `forbidden` ids cannot be drawn. Greedy
// (temperature 0) takes the largest logit, the lowest id on ties, and reports the raw log-prob as
// the behaviour one, with entropy and second moment of the untouched distribution.
//   DATA_LOSS            a logit is NaN or +inf, or all are -inf
//   FAILED_PRECONDITION  nothing is left to draw from: all but `forbidden` ids have -inf
absl::StatusOr<SampledToken> SampleToken(std::span<const float> logits,
                                         const SamplingParams& params,
                                         std::span<const int32_t> forbidden, double uniform);

// What SampleToken would have recorded, had it drawn `id` under the transforms of `options` from
// these logits (the same code finds the support and the sums, so record and replay of equal logits
// are equal bits), and what only a replay asks for. Fields as in SequenceScore.
struct ScoredToken {
  float logprob = 0;
  float raw_logprob = 0;
  float entropy = 0;
  float logprob_second_moment = 0;
  float squared_probs = 0;
  float kept_mass = 1;
  float margin = 0;
  int32_t rank = 0;
  float gap = 0;
  float mass_above = 0;
};

//   DATA_LOSS  a logit is NaN or +inf, or all are -inf
absl::StatusOr<ScoredToken> ScoreToken(std::span<const float> logits, const ScoreOptions& options,
                                       int32_t id);

// log softmax(logits / temperature)[id] in fp32 with fp64 accumulation.
float LogSoftmaxAt(std::span<const float> logits, float temperature, int32_t id);

}  // namespace tandem::rollout
