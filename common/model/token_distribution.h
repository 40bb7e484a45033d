// TokenDistribution: the softmax of one row of logits, summed in a fixed order: what the engine's
// sampler draws from and what the trainer re-scores with, so that equal logits give equal
// log-probs. Free of LibTorch; pure.
#ifndef TANDEM_COMMON_MODEL_TOKEN_DISTRIBUTION_H_
#define TANDEM_COMMON_MODEL_TOKEN_DISTRIBUTION_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "common/tensor/instruction_set.h"

namespace tandem {

// exp(logit / temperature) of so many ids is summed in fp32, then in fp64.
inline constexpr int64_t kDistributionBlock = 512;
constexpr int64_t NumDistributionBlocks(int64_t vocabulary) {
  return (vocabulary + kDistributionBlock - 1) / kDistributionBlock;
}

// The least temperature that divides logits; far smaller ones overflow, and all draw as greedy
// does.
inline constexpr float kLeastTemperature = 1e-3f;

// With y = (logit - largest) * inverse_temperature: mass = sum e^y, first = sum e^y y, second = sum
// e^y y^2.
struct TokenDistribution {
  float largest = -std::numeric_limits<float>::infinity();
  float inverse_temperature = 1;
  double mass = 0, first = 0, second = 0;
  double log_mass = 0;

  // NaN or +inf among the logits, or nothing but -inf.
  bool broken() const { return !std::isfinite(largest) || !std::isfinite(mass) || mass <= 0; }

  // log p of an id with this logit.
  float LogProb(float logit) const {
    return static_cast<float>((logit - largest) * static_cast<double>(inverse_temperature) -
                              log_mass);
  }
  // log p = y - log mass, so H = log mass - E[y] and E[(log p)^2] = E[y^2] - 2 E[y] lm + lm^2.
  float entropy() const { return static_cast<float>(std::fmax(0.0, log_mass - first / mass)); }
  float second_moment() const {
    return static_cast<float>(
        std::fmax(0.0, second / mass - 2 * log_mass * first / mass + log_mass * log_mass));
  }
};

// Of `logits` [V]; -inf has probability 0. `exps` [V] gets e^y, `block_mass`
// [NumDistributionBlocks(V)] its sums; both may be null.
TokenDistribution DistributionOf(InstructionSet set, std::span<const float> logits,
                                 float inverse_temperature, float* exps = nullptr,
                                 double* block_mass = nullptr);

// The same without the two moments, which stay 0: where a log-prob is all that is asked for.
TokenDistribution MassOf(InstructionSet set, std::span<const float> logits,
                         float inverse_temperature, float* exps = nullptr,
                         double* block_mass = nullptr);

// DistributionOf over some of the ids, `largest` being that of all of them (DistributionOf): what
// is left when top-k, top-p or min-p have removed the others. Sums in fp64, in the order of `ids`.
TokenDistribution DistributionOver(std::span<const float> logits, std::span<const int32_t> ids,
                                   float inverse_temperature, float largest);

// sum x^2 over `values` [V], in fp32 by blocks of kDistributionBlock, those in fp64.
double SumOfSquares(InstructionSet set, std::span<const float> values);

// How one id stands among the logits of its row.
struct LogitOrder {
  float margin = 0;  // the largest less the largest of the others
  int32_t rank = 0;  // ids with a larger logit
};
LogitOrder OrderAt(InstructionSet set, std::span<const float> logits, int32_t id);

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_TOKEN_DISTRIBUTION_H_
