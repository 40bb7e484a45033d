#include "drift_lab/phase/toy/tilt.h"

#include <algorithm>
#include <cmath>

namespace tandem::drift {
namespace {

struct Point {
  Tilted tilted;
  double slope = 0;  // dKL/ds
};

Point At(const Distribution& logprobs, const Distribution& direction, double scale) {
  Distribution logits;
  for (size_t a = 0; a < kTokens; ++a) logits[a] = logprobs[a] + scale * direction[a];
  const double largest = *std::max_element(logits.begin(), logits.end());
  double z = 0, first = 0, second = 0;
  for (size_t a = 0; a < kTokens; ++a) {
    const double p = std::exp(logits[a] - largest);
    z += p;
    first += p * direction[a];
    second += p * direction[a] * direction[a];
  }
  const double mean = first / z, log_z = largest + std::log(z);
  Point point;
  point.tilted.scale = scale;
  point.tilted.kl = std::max(0.0, scale * mean - log_z);
  point.slope = scale * std::max(0.0, second / z - mean * mean);
  for (size_t a = 0; a < kTokens; ++a) point.tilted.logprobs[a] = logits[a] - log_z;
  return point;
}

constexpr double kLargestSpread = 1e4;
constexpr int kMaxIterations = 100;
constexpr double kRelativeTolerance = 1e-6;

}  // namespace

Tilted TiltBy(const Distribution& logprobs, const Distribution& direction, double scale) {
  return At(logprobs, direction, scale).tilted;
}

Tilted TiltToKl(const Distribution& logprobs, const Distribution& direction, double kl) {
  const auto [low_d, high_d] = std::minmax_element(direction.begin(), direction.end());
  if (kl <= 0 || *high_d == *low_d) return TiltBy(logprobs, direction, 0);
  double low = 0, high = kLargestSpread / (*high_d - *low_d);
  // Newton on sqrt(2 KL), which is nearly a straight line from the origin while s is small;
  // bisection where a step leaves the bracket.
  double mean = 0, variance = 0;
  for (size_t a = 0; a < kTokens; ++a) mean += std::exp(logprobs[a]) * direction[a];
  for (size_t a = 0; a < kTokens; ++a) {
    variance += std::exp(logprobs[a]) * (direction[a] - mean) * (direction[a] - mean);
  }
  const double wanted = std::sqrt(2 * kl);
  double scale = variance > 0 ? std::min(wanted / std::sqrt(variance), high) : high;
  Point point;
  for (int i = 0; i < kMaxIterations; ++i) {
    point = At(logprobs, direction, scale);
    if (std::abs(point.tilted.kl - kl) <= kRelativeTolerance * kl) break;
    (point.tilted.kl < kl ? low : high) = scale;
    if (high - low <= 1e-12 * high) break;  // the bound of the direction is below kl
    const double root = std::sqrt(2 * point.tilted.kl);
    const double next = scale + (wanted - root) * root / point.slope;
    scale = next > low && next < high ? next : (low + high) / 2;
  }
  return point.tilted;
}

}  // namespace tandem::drift
