#include "rollout_server/faults/faulty_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "rollout_server/engine/sampling/philox.h"

namespace tandem::rollout {
namespace {

PhiloxCounter Words(const DrawPlace& place, FaultStream stream, uint32_t index) {
  return Philox4x32({place.position, place.completion, index, static_cast<uint32_t>(stream)},
                    {static_cast<uint32_t>(place.seed), static_cast<uint32_t>(place.seed >> 32)});
}

// The two Gaussians of two words (Box and Muller), from uniforms in (0, 1].
std::pair<float, float> Gaussians(uint32_t a, uint32_t b) {
  const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(a) + 1.0f) * 0x1.0p-32f));
  const float angle = static_cast<float>(b) * static_cast<float>(2 * std::numbers::pi * 0x1.0p-32);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

SamplingParams Drawn(const SamplingParams& claimed, const EngineFaults& faults) {
  SamplingParams drawn = claimed;
  drawn.temperature = static_cast<float>(claimed.temperature * faults.temperature);
  if (faults.top_k > 0) {
    const auto top_k = static_cast<int32_t>(faults.top_k);
    drawn.top_k = claimed.top_k > 0 ? std::min(claimed.top_k, top_k) : top_k;
  }
  drawn.top_p = std::min(claimed.top_p, static_cast<float>(faults.top_p));
  drawn.min_p = std::max(claimed.min_p, static_cast<float>(faults.min_p));
  return drawn;
}

// What the log-prob of `id` would be, had it been sampled as claimed.
absl::StatusOr<float> ClaimedLogprob(std::span<const float> logits, const SamplingParams& claimed,
                                     std::span<const int32_t> forbidden, int32_t id) {
  std::vector<float> allowed(logits.begin(), logits.end());
  for (const int32_t one : forbidden) allowed[one] = -std::numeric_limits<float>::infinity();
  ScoreOptions options;
  options.temperature = claimed.temperature;
  options.top_k = claimed.top_k;
  options.top_p = claimed.top_p;
  options.min_p = claimed.min_p;
  TANDEM_ASSIGN_OR_RETURN(const ScoredToken scored, ScoreToken(allowed, options, id));
  return scored.logprob;
}

}  // namespace

double FaultDraw(const DrawPlace& place, FaultStream stream) {
  const PhiloxCounter out = Words(place, stream, 0);
  return UniformFromBits(static_cast<uint64_t>(out[0]) << 32 | out[1]);
}

void AddLogitNoise(const DrawPlace& place, double sigma, std::span<float> logits) {
  const auto scale = static_cast<float>(sigma);
  for (size_t id = 0; id < logits.size(); id += 4) {
    const PhiloxCounter words = Words(place, FaultStream::kNoise, static_cast<uint32_t>(id / 4));
    const auto [a, b] = Gaussians(words[0], words[1]);
    const auto [c, d] = Gaussians(words[2], words[3]);
    const float noise[] = {a, b, c, d};
    for (size_t i = id; i < std::min(id + 4, logits.size()); ++i)
      logits[i] += scale * noise[i - id];
  }
}

double NoiseOf(const EngineFaults& faults, const DrawPlace& place) {
  const bool heavy = faults.heavy_tail_probability > 0 &&
                     FaultDraw(place, FaultStream::kHeavyTail) < faults.heavy_tail_probability;
  return faults.logit_noise * (heavy ? faults.heavy_tail_factor : 1.0);
}

absl::StatusOr<SampledToken> FaultySample(std::span<const float> logits,
                                          const SamplingParams& params,
                                          std::span<const int32_t> forbidden, double uniform,
                                          const EngineFaults& faults, const DrawPlace& place) {
  std::vector<float> noisy;
  if (faults.logit_noise > 0) {
    noisy.assign(logits.begin(), logits.end());
    AddLogitNoise(place, NoiseOf(faults, place), noisy);
    logits = noisy;
  }
  TANDEM_ASSIGN_OR_RETURN(SampledToken claimed, SampleToken(logits, params, forbidden, uniform));
  if (!faults.transforms() || params.temperature == 0) return claimed;
  TANDEM_ASSIGN_OR_RETURN(SampledToken drawn,
                          SampleToken(logits, Drawn(params, faults), forbidden, uniform));
  drawn.kept_mass = claimed.kept_mass;
  drawn.support = std::move(claimed.support);
  if (faults.record == FaultRecord::kDrawn) return drawn;
  TANDEM_ASSIGN_OR_RETURN(drawn.behaviour_logprob,
                          ClaimedLogprob(logits, params, forbidden, drawn.id));
  drawn.entropy = claimed.entropy;
  drawn.logprob_second_moment = claimed.logprob_second_moment;
  drawn.top = std::move(claimed.top);
  return drawn;
}

}  // namespace tandem::rollout
