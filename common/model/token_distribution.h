// TokenDistribution: the softmax of one row of logits, with sums in a fixed order. The engine's
// sampler samples from it and the trainer scores with it, so that equal logits give equal
// log-probs. Free of LibTorch; pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "common/tensor/instruction_set.h"

namespace tandem {

// Terms of this many ids are summed in fp32; the blocks' sums are added in fp64.
inline constexpr int64_t kDistributionBlock = 512;
constexpr int64_t NumDistributionBlocks(int64_t vocabulary) {
  return (vocabulary + kDistributionBlock - 1) / kDistributionBlock;
}

// The smallest temperature that divides logits. Much smaller ones would overflow, and at this one
// sampling is greedy in effect.
inline constexpr float kLeastTemperature = 1e-3f;

// With y = (logit - largest) * inverse_temperature: mass = sum e^y, first = sum e^y y, second = sum
// e^y y^2.
struct TokenDistribution {
  float largest = -std::numeric_limits<float>::infinity();
  float inverse_temperature = 1;
  double mass = 0, first = 0, second = 0;
  double log_mass = 0;

  // True if a logit is NaN or +inf, or if all are -inf.
  bool broken() const { return !std::isfinite(largest) || !std::isfinite(mass) || mass <= 0; }

  // The log-prob of an id with this logit.
  float LogProb(float logit) const {
    return static_cast<float>((logit - largest) * static_cast<double>(inverse_temperature) -
                              log_mass);
  }
  // Entropy and E[(log p)^2]. Since log p = y - log mass, H = log mass - E[y], and E[(log p)^2] =
  // E[y^2] - 2 E[y] lm + lm^2 with lm = log mass.
  float entropy() const { return static_cast<float>(std::fmax(0.0, log_mass - first / mass)); }
  float second_moment() const {
    return static_cast<float>(
        std::fmax(0.0, second / mass - 2 * log_mass * first / mass + log_mass * log_mass));
  }
};

// The distribution of `logits` [V]; -inf has probability 0. If not null, `exps` [V] receives e^y
// and `block_mass` [NumDistributionBlocks(V)] the sum of each block.
TokenDistribution DistributionOf(InstructionSet set, std::span<const float> logits,
                                 float inverse_temperature, float* exps = nullptr,
                                 double* block_mass = nullptr);

// The same without the two moments, which stay 0, for callers that need only log-probs.
TokenDistribution MassOf(InstructionSet set, std::span<const float> logits,
                         float inverse_temperature, float* exps = nullptr,
                         double* block_mass = nullptr);

// The distribution over `ids` alone, which are what top-k, top-p or min-p left. `largest` is that
// of all ids, as from DistributionOf. Sums are fp64, in the order of `ids`.
TokenDistribution DistributionOver(std::span<const float> logits, std::span<const int32_t> ids,
                                   float inverse_temperature, float largest);

// The sum of x^2 over `values` [V]: fp32 within blocks of kDistributionBlock, fp64 over blocks.
double SumOfSquares(InstructionSet set, std::span<const float> values);

// The rank of one id among the logits of its row.
struct LogitOrder {
  float margin = 0;  // the largest logit less the second largest
  int32_t rank = 0;  // number of ids with a larger logit
};
LogitOrder OrderAt(InstructionSet set, std::span<const float> logits, int32_t id);

}  // namespace tandem
