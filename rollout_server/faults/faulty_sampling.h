// FaultySample: the sampler under EngineFaults: noise on the logits, undisclosed transforms, and
// what the record says of them. FaultDraw: the random numbers of all faults. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::rollout {

// The place of a draw: random numbers are a function of it alone.
struct DrawPlace {
  uint64_t seed = 0;  // of the group
  uint32_t completion = 0;
  uint32_t position = 0;  // in the completion, from 0
};

// Different from what the sampler draws with, and from each other.
enum class FaultStream : uint32_t { kNoise = 1, kHeavyTail = 2, kStalePrefix = 3, kShift = 4 };

// One uniform in (0, 1).
double FaultDraw(const DrawPlace& place, FaultStream stream);

// Adds sigma times a standard Gaussian to each logit, of its own for each (place, id).
void AddLogitNoise(const DrawPlace& place, double sigma, std::span<float> logits);

// The standard deviation of this token's noise: logit_noise, and with heavy_tail_probability that
// times heavy_tail_factor.
double NoiseOf(const EngineFaults& faults, const DrawPlace& place);

// SampleToken with the faults' transforms over those of `params` (temperature times theirs, the
// tighter of each filter) and noise. raw_logprob is of the noisy logits: the engine believes in
// them. kept_mass and support are those of the claimed transforms; log-prob, entropy, second moment
// and top log-probs are of the distribution that faults.record names. Where an undisclosed
// temperature over claimed filters draws an id that those would have removed, its claimed log-prob
// is -inf.
//   INTERNAL  as SampleToken
absl::StatusOr<SampledToken> FaultySample(std::span<const float> logits,
                                          const SamplingParams& params,
                                          std::span<const int32_t> forbidden, double uniform,
                                          const EngineFaults& faults, const DrawPlace& place);

}  // namespace tandem::rollout
