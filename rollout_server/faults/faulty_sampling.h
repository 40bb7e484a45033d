// FaultySample: the sampler under EngineFaults, with noise on the logits and undisclosed
// transforms. FaultDraw: the random numbers of all faults. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::rollout {

// The token that a random number belongs to; the number is a function of it alone.
struct DrawPlace {
  uint64_t seed = 0;  // of the group
  uint32_t completion = 0;
  uint32_t position = 0;  // in the completion, from 0
};

// Streams of random numbers, independent of each other and of the sampler's.
enum class FaultStream : uint32_t { kNoise = 1, kHeavyTail = 2, kStalePrefix = 3, kShift = 4 };

// One uniform in (0, 1).
double FaultDraw(const DrawPlace& place, FaultStream stream);

// Adds sigma times a standard Gaussian to each logit, another one for each (place, id).
void AddLogitNoise(const DrawPlace& place, double sigma, std::span<float> logits);

// The standard deviation of this token's noise: logit_noise, and with heavy_tail_probability that
// times heavy_tail_factor.
double NoiseOf(const EngineFaults& faults, const DrawPlace& place);

// SampleToken with noise and with the faults' transforms on top of those of `params` (the product
// of the temperatures, the tighter of each filter). raw_logprob is from the noisy logits, which are
// the engine's logits. kept_mass and support are those of the claimed transforms. Log-prob,
// entropy, second moment and top log-probs are of the distribution that faults.record names. When
// the undisclosed temperature makes it sample an id that the claimed filters remove, the claimed
// log-prob is -inf.
//   INTERNAL  as SampleToken
absl::StatusOr<SampledToken> FaultySample(std::span<const float> logits,
                                          const SamplingParams& params,
                                          std::span<const int32_t> forbidden, double uniform,
                                          const EngineFaults& faults, const DrawPlace& place);

}  // namespace tandem::rollout
