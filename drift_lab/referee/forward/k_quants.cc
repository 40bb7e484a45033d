#include "drift_lab/referee/forward/k_quants.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "drift_lab/referee/forward/rounding.h"

namespace tandem::drift {
namespace {

// Weights are scale * level - minimum.
struct Affine {
  float scale = 0, minimum = 0;
};

// The scale and minimum of 16 levels with the least weighted square error that a few tried step
// widths give.
Affine FitAffine(std::span<const float> x) {
  constexpr float kLevels = 15;
  float squares = 0;
  for (const float value : x) squares += value * value;
  const float typical = std::sqrt(squares / static_cast<float>(x.size()));
  float least = x[0], most = x[0], sum_w = 0, sum_x = 0;
  for (const float value : x) {
    least = std::min(least, value);
    most = std::max(most, value);
    sum_w += typical + std::abs(value);
    sum_x += (typical + std::abs(value)) * value;
  }
  least = std::min(least, 0.0F);
  if (most == least) return {0, -least};
  const auto error = [&](float inverse, float scale, float offset) {
    float sum = 0;
    for (const float value : x) {
      const float off =
          scale * NearestBetween(inverse * (value - least), 0, kLevels) + offset - value;
      sum += (typical + std::abs(value)) * off * off;
    }
    return sum;
  };
  float inverse = kLevels / (most - least);
  Affine best{1 / inverse, -least};
  float best_error = error(inverse, best.scale, least);
  for (int step = 0; step <= 20; ++step) {
    inverse = (-1.0F + 0.1F * static_cast<float>(step) + kLevels) / (most - least);
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (const float value : x) {
      const float weight = typical + std::abs(value);
      const float level = NearestBetween(inverse * (value - least), 0, kLevels);
      sum_l += weight * level;
      sum_l2 += weight * level * level;
      sum_xl += weight * level * value;
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) continue;
    float scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    float offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (offset > 0) {
      offset = 0;
      scale = sum_xl / sum_l2;
    }
    const float now = error(inverse, scale, offset);
    if (now < best_error) {
      best_error = now;
      best = {scale, -offset};
    }
  }
  return best;
}

// The scale of levels -32 .. 31 that goes best with `x`, weighted by squares; 0 where all are 0.
float FitScale(std::span<const float> x) {
  constexpr float kHalf = 32;
  const float largest = *std::max_element(
      x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  if (std::abs(largest) < 1e-15F) return 0;
  float best = 0, scale = 0;
  for (const int step : {0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    const float inverse = -(kHalf + 0.1F * static_cast<float>(step)) / largest;
    float sum_xl = 0, sum_l2 = 0;
    for (const float value : x) {
      const float level = NearestBetween(inverse * value, -kHalf, kHalf - 1);
      sum_xl += value * value * value * level;
      sum_l2 += value * value * level * level;
    }
    if (sum_l2 > 0 && (step == 0 || sum_xl * sum_xl > best * sum_l2)) {
      scale = sum_xl / sum_l2;
      best = scale * sum_xl;
    }
  }
  return scale;
}

}  // namespace

void RoundToQ4K(std::span<float, kSuperBlock> weights) {
  constexpr size_t kBlocks = 8, kSize = 32;
  std::array<Affine, kBlocks> fits;
  float most_scale = 0, most_minimum = 0;
  for (size_t b = 0; b < kBlocks; ++b) {
    fits[b] = FitAffine(weights.subspan(b * kSize, kSize));
    most_scale = std::max(most_scale, fits[b].scale);
    most_minimum = std::max(most_minimum, fits[b].minimum);
  }
  const float to_scale = most_scale > 0 ? 63 / most_scale : 0;
  const float to_minimum = most_minimum > 0 ? 63 / most_minimum : 0;
  const float unit_scale = AsHalf(most_scale / 63), unit_minimum = AsHalf(most_minimum / 63);
  for (size_t b = 0; b < kBlocks; ++b) {
    const float scale = unit_scale * NearestBetween(to_scale * fits[b].scale, 0.0F, 63.0F);
    const float minimum = unit_minimum * NearestBetween(to_minimum * fits[b].minimum, 0.0F, 63.0F);
    for (float& weight : weights.subspan(b * kSize, kSize)) {
      weight = scale == 0
                   ? -minimum
                   : scale * NearestBetween((weight + minimum) / scale, 0.0F, 15.0F) - minimum;
    }
  }
}

void RoundToQ6K(std::span<float, kSuperBlock> weights) {
  constexpr size_t kBlocks = 16, kSize = 16;
  std::array<float, kBlocks> scales;
  for (size_t b = 0; b < kBlocks; ++b) scales[b] = FitScale(weights.subspan(b * kSize, kSize));
  const float largest = *std::max_element(
      scales.begin(), scales.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float inverse = largest == 0 ? 0 : -128 / largest;
  const float unit = largest == 0 ? 0 : AsHalf(1 / inverse);
  for (size_t b = 0; b < kBlocks; ++b) {
    const float scale = unit * std::min(127.0F, Nearest(inverse * scales[b]));
    for (float& weight : weights.subspan(b * kSize, kSize)) {
      weight = scale == 0 ? 0 : scale * NearestBetween(weight / scale, -32.0F, 31.0F);
    }
  }
}

}  // namespace tandem::drift
