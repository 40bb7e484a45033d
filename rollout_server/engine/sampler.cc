#include "rollout_server/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/tensor/vector_exp.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kBlock = 512;  // fp32 partial sums of this many terms, then fp64
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Largest logit; NaN when any is NaN (x - x is 0 for finite x, NaN for NaN and infinities).
TANDEM_VECTOR_CLONES
float MaxLogit(const float* logits, int64_t n) {
  float largest = kMinusInfinity;
  for (int64_t i = 0; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
  return largest;
}

TANDEM_VECTOR_CLONES
int64_t CountNan(const float* logits, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += logits[i] != logits[i];
  return count;
}

struct BlockSums {
  float mass = 0;   // sum e
  float first = 0;  // sum e y
  float second = 0; // sum e y^2
};

// y = (logit - max) * scale; e = exp(y), 0 for -inf. Writes e to `exps`.
TANDEM_VECTOR_CLONES
BlockSums ExpBlock(const float* logits, int64_t n, float max, float scale, float* exps) {
  float mass = 0, first = 0, second = 0;
#pragma omp simd reduction(+ : mass, first, second)
  for (int64_t i = 0; i < n; ++i) {
    const float y = (logits[i] - max) * scale;
    // Below e^-87 a term is nothing next to the largest, which is 1.
    const bool counts = y > -87.0f;
    const float clamped = counts ? y : -87.0f;
    const float e = counts ? VectorExp(clamped) : 0.0f;
    exps[i] = e;
    mass += e;
    first += e * clamped;
    second += e * clamped * clamped;
  }
  return {mass, first, second};
}

struct Distribution {
  double mass = 0, first = 0, second = 0;
  double log_mass() const { return std::log(mass); }
  // log p = y - log mass, so H = log mass - E[y] and E[(log p)^2] = E[y^2] - 2 E[y] lm + lm^2.
  float entropy() const { return static_cast<float>(std::max(0.0, log_mass() - first / mass)); }
  float second_moment() const {
    const double lm = log_mass();
    return static_cast<float>(std::max(0.0, second / mass - 2 * lm * first / mass + lm * lm));
  }
};

// Fills `exps` [V] and `block_mass` [ceil(V / kBlock)].
Distribution Exponentiate(std::span<const float> logits, float max, float scale,
                          std::vector<float>& exps, std::vector<double>& block_mass) {
  const int64_t n = static_cast<int64_t>(logits.size());
  exps.resize(n);
  block_mass.assign((n + kBlock - 1) / kBlock, 0);
  Distribution d;
  for (int64_t b = 0; b * kBlock < n; ++b) {
    const int64_t begin = b * kBlock;
    const BlockSums sums =
        ExpBlock(logits.data() + begin, std::min(kBlock, n - begin), max, scale, exps.data() + begin);
    block_mass[b] = sums.mass;
    d.mass += sums.mass;
    d.first += sums.first;
    d.second += sums.second;
  }
  return d;
}

// First id whose cumulative mass exceeds `target`; the last id with mass when rounding runs past it.
int32_t InverseCdf(const std::vector<float>& exps, const std::vector<double>& block_mass,
                   double target) {
  const int64_t n = static_cast<int64_t>(exps.size());
  double cumulative = 0;
  int64_t last_with_mass = 0;
  for (size_t b = 0; b < block_mass.size(); ++b) {
    if (block_mass[b] <= 0) continue;
    const int64_t begin = static_cast<int64_t>(b) * kBlock, end = std::min(n, begin + kBlock);
    const bool inside = cumulative + block_mass[b] > target;
    if (inside) {
      for (int64_t i = begin; i < end; ++i) {
        if (exps[i] <= 0) continue;
        cumulative += exps[i];
        last_with_mass = i;
        if (cumulative > target) return static_cast<int32_t>(i);
      }
      return static_cast<int32_t>(last_with_mass);
    }
    cumulative += block_mass[b];
    for (int64_t i = end - 1; i >= begin; --i) {
      if (exps[i] > 0) {
        last_with_mass = i;
        break;
      }
    }
  }
  return static_cast<int32_t>(last_with_mass);
}

// Sets everything that top-k, top-p and min-p remove to -inf in `scaled` (logits / T).
void ApplyFilters(std::vector<float>& scaled, const SamplingParams& params) {
  const int64_t n = static_cast<int64_t>(scaled.size());
  if (params.top_k > 0 && params.top_k < n) {
    std::vector<float> copy = scaled;
    std::nth_element(copy.begin(), copy.begin() + (params.top_k - 1), copy.end(), std::greater<>());
    const float threshold = copy[params.top_k - 1];
    for (float& x : scaled) x = x < threshold ? kMinusInfinity : x;  // ties stay, as in transformers
  }
  const auto softmax_mass = [&](float max) {
    double mass = 0;
    for (float x : scaled) mass += std::exp(static_cast<double>(x) - max);
    return mass;
  };
  if (params.top_p < 1) {
    // transformers sorts ascending and removes the tail whose cumulative probability is <= 1 - p.
    std::vector<int32_t> order;
    for (int64_t i = 0; i < n; ++i) {
      if (scaled[i] != kMinusInfinity) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scaled[a] < scaled[b]; });
    const float max = scaled[order.back()];
    const double mass = softmax_mass(max);
    double cumulative = 0;
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      cumulative += std::exp(static_cast<double>(scaled[order[i]]) - max) / mass;
      if (cumulative > 1.0 - params.top_p) break;
      scaled[order[i]] = kMinusInfinity;
    }
  }
  if (params.min_p > 0) {
    const float max = *std::max_element(scaled.begin(), scaled.end());
    const float threshold = max + std::log(params.min_p);
    for (float& x : scaled) x = x < threshold ? kMinusInfinity : x;
  }
}

absl::Status CheckRow(std::span<const float> logits, float max) {
  const int64_t nans = CountNan(logits.data(), static_cast<int64_t>(logits.size()));
  if (nans > 0 || !std::isfinite(max)) {
    return absl::InternalError(absl::StrCat("the model gave ", nans, " NaN logits of ",
                                            logits.size(), ", largest ", max));
  }
  return absl::OkStatus();
}

// Workspace of the sampling thread; a row of V floats is too large to allocate per token.
struct Scratch {
  std::vector<float> exps;
  std::vector<double> block_mass;
  std::vector<float> filtered;
};

}  // namespace

absl::StatusOr<SampledToken> SampleToken(std::span<const float> logits, const SamplingParams& params,
                                         std::span<const int32_t> forbidden, double uniform) {
  thread_local Scratch scratch;
  const float raw_max = MaxLogit(logits.data(), static_cast<int64_t>(logits.size()));
  if (absl::Status status = CheckRow(logits, raw_max); !status.ok()) return status;
  const bool greedy = params.temperature == 0;
  const bool filtered =
      !greedy && (params.top_k > 0 || params.top_p < 1 || params.min_p > 0);
  SampledToken token;

  std::span<const float> row = logits;
  float max = raw_max;
  float scale = greedy ? 1.0f : 1.0f / params.temperature;
  if (filtered || !forbidden.empty()) {
    scratch.filtered.assign(logits.begin(), logits.end());
    for (int32_t id : forbidden) scratch.filtered[id] = kMinusInfinity;
    if (filtered) {
      for (float& x : scratch.filtered) x *= scale;
      scale = 1.0f;
      ApplyFilters(scratch.filtered, params);
    }
    row = scratch.filtered;
    max = MaxLogit(row.data(), static_cast<int64_t>(row.size()));
    if (max == kMinusInfinity) return absl::InternalError("no token is left to draw from");
  }
  const bool untouched = row.data() == logits.data() && scale == 1.0f;

  if (greedy) {
    token.id = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  } else {
    const Distribution d = Exponentiate(row, max, scale, scratch.exps, scratch.block_mass);
    token.id = InverseCdf(scratch.exps, scratch.block_mass, uniform * d.mass);
    token.behaviour_logprob =
        static_cast<float>((row[token.id] - max) * static_cast<double>(scale) - d.log_mass());
    token.entropy = d.entropy();
    token.logprob_second_moment = d.second_moment();
  }
  if (untouched && !greedy) {
    token.raw_logprob = token.behaviour_logprob;
    return token;
  }
  const Distribution raw = Exponentiate(logits, raw_max, 1.0f, scratch.exps, scratch.block_mass);
  token.raw_logprob =
      static_cast<float>(static_cast<double>(logits[token.id]) - raw_max - raw.log_mass());
  if (greedy) {
    token.behaviour_logprob = token.raw_logprob;
    token.entropy = raw.entropy();
    token.logprob_second_moment = raw.second_moment();
  }
  return token;
}

float LogSoftmaxAt(std::span<const float> logits, float temperature, int32_t id) {
  thread_local Scratch scratch;
  const float max = MaxLogit(logits.data(), static_cast<int64_t>(logits.size()));
  const float scale = 1.0f / temperature;
  const Distribution d = Exponentiate(logits, max, scale, scratch.exps, scratch.block_mass);
  return static_cast<float>((logits[id] - max) * static_cast<double>(scale) - d.log_mass());
}

}  // namespace tandem::rollout
