// Sampler: one row of logits to one token with its record (stage 2), and one row with a given token
// to the same record. Pure.
//
// Transforms are applied in the order of Hugging Face transformers' logits processors:
// min_new_tokens (stop ids to -inf), temperature, top-k, top-p (nucleus sampling, Holtzman et al.,
// ICLR 2020), min-p. With p = softmax(logits / T) over the ids that filters leave (the support),
// renormalised, and a the token:
//   behaviour = log p(a),  entropy = -sum p log p,  second moment = sum p (log p)^2
//   raw = log softmax(untouched logits)(a)
//   kept mass (retained probability mass) = sum of softmax(logits / T) over the support
// Sampling is by inverse CDF: the token is the first id, in id order, at which the cumulative p
// exceeds the uniform.
//
// Invariant: record and replay of equal logits are equal bits, since one code finds the support and
// adds up the sums in an order that the vocabulary fixes (common/model/token_distribution.h).
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
  std::vector<int32_t> support;  // ids, rising; only with params.return_support and a filter on
  std::vector<TopLogprob> top;   // params.top_logprobs most likely ids, likeliest first
};

// Samples from `logits` [V] fp32 with `uniform` in (0, 1), which is UniformDraw of philox.h for
// this seed, completion and position, and never one of the `forbidden` ids. Greedy
// (temperature 0) takes the largest logit, the lowest id on ties, and records the raw log-prob as
// the behaviour log-prob, with entropy and second moment of the untouched distribution.
//   DATA_LOSS            a logit is NaN or +inf, or all are -inf
//   FAILED_PRECONDITION  all ids that are not `forbidden` have -inf
absl::StatusOr<SampledToken> SampleToken(std::span<const float> logits,
                                         const SamplingParams& params,
                                         std::span<const int32_t> forbidden, double uniform);

// What SampleToken would have recorded, had it sampled `id` from these logits under the transforms
// of `options`, and further numbers that only scores have. Fields as in SequenceScore.
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
  std::vector<TopLogprob> top;
};

//   DATA_LOSS  a logit is NaN or +inf, or all are -inf
absl::StatusOr<ScoredToken> ScoreToken(std::span<const float> logits, const ScoreOptions& options,
                                       int32_t id);

// log softmax(logits / temperature)[id] in fp32 with fp64 accumulation.
float LogSoftmaxAt(std::span<const float> logits, float temperature, int32_t id);

}  // namespace tandem::rollout
