// NoiseFit: is a residual of log-probs what Gaussian noise on the logits leaves, and of which size?
// Pure.
//
// Tokens were drawn from softmax(z + e) with e_i ~ N(0, s_t^2) for every id, while the replay gives
// softmax(z). To second order in s the residual log p_replay - log p_record of token a has
//   mean -s^2 (1 - q) / 2,  variance s^2 (1 - 2 p_a + q),  q = sum p^2,
// so u = (residual - mean) / sqrt(1 - 2 p_a + q) is N(0, s_t^2). With a heavy tail s_t is s, or m s
// for a share eta of the tokens: a mixture of two normals, fitted by EM. Whether the fit is
// believed is a Kolmogorov-Smirnov distance; what noise did not make does not come out normal. Nor
// does it come out independent: noise is drawn anew for each token, so abs(u) depends neither on
// log p nor on the place in the completion nor on its neighbour, and the same token after the same
// ids has another residual in each completion, which no fault of arithmetic or of weights gives.
#pragma once

#include <cstdint>
#include <span>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::drift {

// All [T], in parallel. Tokens whose scale 1 - 2 p + q is under kLeastNoiseScale are left out: near
// a point distribution no noise is seen.
struct NoiseInputs {
  std::span<const double> residual;      // replay - record
  std::span<const float> logprob;        // replay
  std::span<const float> squared_probs;  // q, replay
  std::span<const int32_t> sequence;     // completion of the token: clusters of the interval
  std::span<const uint64_t> context;     // equal where the same token was drawn after the same ids
};
inline constexpr double kLeastNoiseScale = 0.01;
inline constexpr int64_t kLeastNoiseTokens = 200;  // fewer cannot tell noise from anything else
// Of four standard normals under noise: one fit in two thousand is above.
inline constexpr double kLargestDependence = 3.7;
inline constexpr double kLargestRepeated = 0.5;

struct NoiseFit {
  offpolicy::Interval sigma;             // s
  offpolicy::Interval tail_probability;  // eta; 0 without a heavy tail
  offpolicy::Interval tail_factor;       // m; 1 without
  int64_t num_tokens = 0;
  double distance = 1;          // of the distribution of u / s from the fitted one
  double largest_distance = 0;  // that is believed at this number of tokens
  bool heavy_tail = false;      // the mixture is believed and one normal is not
  double dependence = 0;        // largest abs(z) of the correlations that noise does not have
  double repeated = 0;          // share of equal tokens after equal ids whose residual is the same
  bool believed() const {
    return num_tokens >= kLeastNoiseTokens && distance <= largest_distance &&
           dependence <= kLargestDependence && repeated <= kLargestRepeated;
  }
};

NoiseFit FitNoise(const NoiseInputs& inputs, const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift
