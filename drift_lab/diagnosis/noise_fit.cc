#include "drift_lab/diagnosis/noise_fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "common/statistics/distributions.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

constexpr int kEmRounds = 60;
constexpr double kLeastEta = 1e-3;  // a smaller share is not a second component
// A right fit has a larger Kolmogorov-Smirnov distance than 1.95 / sqrt(n) once in a thousand. The
// slack is for the terms of third order that the normal approximation leaves out.
constexpr double kKsFactor = 1.95, kKsSlack = 0.015;

struct Mixture {
  double sigma = 0, eta = 0, factor = 1;
};

struct Tokens {
  std::vector<double> residual, scale, spread;  // spread: 1 - q
  std::vector<double> logprob, place;           // place: number of tokens before, in the completion
  std::vector<uint64_t> context;
  std::vector<int32_t> cluster;  // 0 .. num_clusters - 1
  int32_t num_clusters = 0;
};

Tokens Usable(const NoiseInputs& in) {
  Tokens tokens;
  std::map<int32_t, int32_t> clusters;
  double place = 0;
  for (size_t t = 0; t < in.residual.size(); ++t) {
    place = t > 0 && in.sequence[t] == in.sequence[t - 1] ? place + 1 : 0;
    const double q = in.squared_probs[t], p = std::exp(static_cast<double>(in.logprob[t]));
    const double variance = 1 - 2 * p + q;
    if (!std::isfinite(in.residual[t]) || !(variance >= kLeastNoiseScale)) continue;
    tokens.residual.push_back(in.residual[t]);
    tokens.scale.push_back(std::sqrt(variance));
    tokens.spread.push_back(1 - q);
    tokens.logprob.push_back(in.logprob[t]);
    tokens.place.push_back(place);
    tokens.context.push_back(in.context[t]);
    const auto [place, added] = clusters.emplace(in.sequence[t], tokens.num_clusters);
    tokens.num_clusters += added;
    tokens.cluster.push_back(place->second);
  }
  return tokens;
}

// u of every token, given the mean square of its noise.
std::vector<double> Standardise(const Tokens& tokens, double mean_square) {
  std::vector<double> u(tokens.residual.size());
  for (size_t t = 0; t < u.size(); ++t) {
    u[t] = (tokens.residual[t] + mean_square * tokens.spread[t] / 2) / tokens.scale[t];
  }
  return u;
}

double MeanSquare(const Mixture& m) {
  return m.sigma * m.sigma * (1 - m.eta + m.eta * m.factor * m.factor);
}

// EM for one zero-mean normal, or for two with different scales. Token t counts times(t), so that a
// resample of clusters is a weighting of the same tokens.
template <typename Times>
Mixture FitMixture(const Tokens& tokens, const Times& times, bool two) {
  const std::vector<double> start = Standardise(tokens, 0);
  double squares = 0, count = 0;
  for (size_t t = 0; t < start.size(); ++t) {
    squares += times(t) * start[t] * start[t];
    count += times(t);
  }
  if (count == 0 || squares == 0) return {};
  Mixture fit{.sigma = std::sqrt(squares / count)};
  if (two) {
    std::vector<double> sizes;
    for (const double u : start) sizes.push_back(std::abs(u));
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2),
                     sizes.end());
    const double core = std::max(sizes[sizes.size() / 2] / 0.6745, 1e-9);
    fit = {.sigma = core, .eta = 0.05, .factor = std::max(2.0, 3 * fit.sigma / core)};
  }
  for (int round = 0; round < kEmRounds; ++round) {
    const std::vector<double> u = Standardise(tokens, MeanSquare(fit));
    double wide = 0, wide_squares = 0, narrow = 0, narrow_squares = 0;
    for (size_t t = 0; t < u.size(); ++t) {
      const double n = times(t);
      if (n == 0) continue;
      double share = 0;  // probability that the token's noise is of the wide component
      if (two) {
        const double z = u[t] / fit.sigma, zw = z / fit.factor;
        const double log_odds =
            std::log(fit.eta / (1 - fit.eta) / fit.factor) + (z * z - zw * zw) / 2;
        share = 1 / (1 + std::exp(-log_odds));
      }
      wide += n * share;
      wide_squares += n * share * u[t] * u[t];
      narrow += n * (1 - share);
      narrow_squares += n * (1 - share) * u[t] * u[t];
    }
    if (narrow <= 0 || narrow_squares <= 0) break;
    fit.sigma = std::sqrt(narrow_squares / narrow);
    if (!two) continue;
    fit.eta = std::clamp(wide / (wide + narrow), kLeastEta / 10, 0.5);
    if (wide > 0) fit.factor = std::max(1.0, std::sqrt(wide_squares / wide) / fit.sigma);
  }
  return fit;
}

double KsDistance(const Tokens& tokens, const Mixture& fit) {
  std::vector<double> u = Standardise(tokens, MeanSquare(fit));
  std::ranges::sort(u);
  double distance = 0;
  const auto n = static_cast<double>(u.size());
  for (size_t t = 0; t < u.size(); ++t) {
    const double z = u[t] / fit.sigma;
    const double cdf =
        (1 - fit.eta) * offpolicy::NormalCdf(z) + fit.eta * offpolicy::NormalCdf(z / fit.factor);
    distance = std::max({distance, std::abs(cdf - static_cast<double>(t) / n),
                         std::abs(cdf - static_cast<double>(t + 1) / n)});
  }
  return distance;
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  double sa = 0, sb = 0, aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sa += a[i];
    sb += b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
    ab += a[i] * b[i];
  }
  const double variances = (aa - sa * sa / n) * (bb - sb * sb / n);
  return variances > 0 ? (ab - sa * sb / n) / std::sqrt(variances) : 0;
}

// The largest abs(z) of the correlations of abs(u) with what noise is independent of. abs(u) is
// clamped, so that a token of the heavy tail does not outweigh the others.
double DependenceOf(const Tokens& tokens, const Mixture& fit) {
  constexpr double kCut = 2.5;
  const std::vector<double> u = Standardise(tokens, MeanSquare(fit));
  std::vector<double> size, before, after;
  for (const double x : u) size.push_back(std::min(std::abs(x) / fit.sigma, kCut));
  for (size_t t = 1; t < u.size(); ++t) {
    if (tokens.cluster[t] != tokens.cluster[t - 1]) continue;
    before.push_back(size[t - 1]);
    after.push_back(size[t]);
  }
  const auto z = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::abs(Correlation(a, b)) * std::sqrt(static_cast<double>(a.size()));
  };
  return std::max(
      {z(size, tokens.logprob), z(size, tokens.place), z(size, tokens.spread), z(before, after)});
}

// The share of tokens that have the same residual as the first token with the same context, among
// tokens that are not the first of theirs.
double RepeatedShare(const Tokens& tokens) {
  constexpr double kEqual = 2e-5;
  constexpr double kLeastPairs = 3;
  std::map<uint64_t, double> first;
  double pairs = 0, equal = 0;
  for (size_t t = 0; t < tokens.context.size(); ++t) {
    const auto [place, added] = first.emplace(tokens.context[t], tokens.residual[t]);
    if (added) continue;
    pairs += 1;
    equal += std::abs(place->second - tokens.residual[t]) <= kEqual;
  }
  return pairs >= kLeastPairs ? equal / pairs : 0;
}

// Fills in the intervals of a fit, by resampling completions.
void FillIntervals(const Tokens& tokens, const Mixture& fit, bool two,
                   const offpolicy::BootstrapOptions& options, NoiseFit& out) {
  out.sigma.value = fit.sigma;
  out.tail_probability.value = fit.eta;
  out.tail_factor.value = fit.factor;
  if (tokens.num_clusters < offpolicy::kLeastClusters) return;
  std::vector<double> replicates[3], leave_one_out[3];
  const auto add = [](const Mixture& m, std::vector<double>* to) {
    to[0].push_back(m.sigma);
    to[1].push_back(m.eta);
    to[2].push_back(m.factor);
  };
  offpolicy::ClusterResampler resampler(tokens.num_clusters, options.seed);
  for (int64_t r = 0; r < options.replicates; ++r) {
    const std::span<const int32_t> counts = resampler.Next();
    add(FitMixture(
            tokens,
            [&](size_t t) { return double(counts[static_cast<size_t>(tokens.cluster[t])]); }, two),
        replicates);
  }
  for (int32_t c = 0; c < tokens.num_clusters; ++c) {
    add(FitMixture(
            tokens, [&](size_t t) { return tokens.cluster[t] == c ? 0.0 : 1.0; }, two),
        leave_one_out);
  }
  Interval* const intervals[] = {&out.sigma, &out.tail_probability, &out.tail_factor};
  for (int i = 0; i < (two ? 3 : 1); ++i) {
    *intervals[i] =
        offpolicy::BcaInterval(intervals[i]->value, replicates[i], leave_one_out[i], options.level);
  }
}

}  // namespace

NoiseFit FitNoise(const NoiseInputs& inputs, const offpolicy::BootstrapOptions& options) {
  NoiseFit out;
  const Tokens tokens = Usable(inputs);
  out.num_tokens = static_cast<int64_t>(tokens.residual.size());
  if (out.num_tokens == 0) return out;
  const auto once = [](size_t) { return 1.0; };
  const Mixture one = FitMixture(tokens, once, false);
  if (one.sigma == 0) return out;
  out.largest_distance = kKsFactor / std::sqrt(static_cast<double>(out.num_tokens)) + kKsSlack;
  const Mixture two = FitMixture(tokens, once, true);
  // The gain of log-likelihood decides whether there is a second component, because the distance is
  // small as soon as most tokens fit one normal.
  double gain = 0;
  const std::vector<double> u1 = Standardise(tokens, MeanSquare(one)),
                            u2 = Standardise(tokens, MeanSquare(two));
  for (size_t t = 0; t < u1.size(); ++t) {
    const double z1 = u1[t] / one.sigma, z2 = u2[t] / two.sigma, wide = z2 / two.factor;
    gain += std::log((1 - two.eta) * std::exp(-z2 * z2 / 2) +
                     two.eta / two.factor * std::exp(-wide * wide / 2)) -
            std::log(two.sigma) + z1 * z1 / 2 + std::log(one.sigma);
  }
  out.heavy_tail = gain > 10 && two.eta > kLeastEta && two.factor > 1.5;
  const Mixture& chosen = out.heavy_tail ? two : one;
  out.distance = KsDistance(tokens, chosen);
  out.dependence = DependenceOf(tokens, chosen);
  out.repeated = RepeatedShare(tokens);
  FillIntervals(tokens, chosen, out.heavy_tail, options, out);
  return out;
}

}  // namespace tandem::drift
