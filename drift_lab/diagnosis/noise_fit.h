// NoiseFit: is a residual of log-probs what Gaussian noise on the logits leaves, and of which size?
// Pure.
//
// Tokens were sampled from softmax(z + e) with e_i ~ N(0, s_t^2) for every id, while the replay
// computes softmax(z). To second order in s, the residual log p_replay - log p_record of token a
// has
//
//   mean -s^2 (1 - q) / 2,  variance s^2 (1 - 2 p_a + q),  q = sum p^2
//
// so u = (residual - mean) / sqrt(1 - 2 p_a + q) is N(0, s_t^2). With a heavy tail, s_t is s, or m
// s for a share eta of the tokens: a mixture of two normals, fitted by EM (Dempster, Laird and
// Rubin 1977).
//
// Three checks decide whether the fit is believed. The distribution of u is close to the fitted one
// (Kolmogorov-Smirnov distance). abs(u) depends neither on log p, nor on the place in the
// completion, nor on its neighbour, because noise is independent for each token. And the same token
// after the same ids has different residuals in different completions; a fault of arithmetic or of
// weights gives the same residual.
#pragma once

#include <cstdint>
#include <span>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::drift {

// All [T], in parallel. Tokens with 1 - 2 p + q below kLeastNoiseScale are left out, because noise
// does not show near a point distribution.
struct NoiseInputs {
  std::span<const double> residual;      // replay - record
  std::span<const float> logprob;        // replay
  std::span<const float> squared_probs;  // q, replay
  std::span<const int32_t> sequence;     // completion of the token; the intervals resample them
  std::span<const uint64_t> context;     // equal if the same token was sampled after the same ids
};
inline constexpr double kLeastNoiseScale = 0.01;
inline constexpr int64_t kLeastNoiseTokens = 200;  // fewer cannot tell noise from anything else
// The largest of the four abs(z) of the independence check; noise exceeds it once in two thousand
// fits.
inline constexpr double kLargestDependence = 3.7;
inline constexpr double kLargestRepeated = 0.5;

struct NoiseFit {
  offpolicy::Interval sigma;             // s
  offpolicy::Interval tail_probability;  // eta; 0 without a heavy tail
  offpolicy::Interval tail_factor;       // m; 1 without
  int64_t num_tokens = 0;
  double distance = 1;          // Kolmogorov-Smirnov distance of u / s from the fitted distribution
  double largest_distance = 0;  // the largest distance that is believed for this number of tokens
  bool heavy_tail = false;      // the mixture fits and one normal does not
  double dependence = 0;        // largest abs(z) of the correlations that noise does not have
  double repeated = 0;          // share of equal tokens after equal ids with the same residual
  bool believed() const {
    return num_tokens >= kLeastNoiseTokens && distance <= largest_distance &&
           dependence <= kLargestDependence && repeated <= kLargestRepeated;
  }
};

NoiseFit FitNoise(const NoiseInputs& inputs, const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift
