#include "drift_lab/referee/residuals.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace tandem::drift {
namespace {

// No residual counts more than this, so that a token that a suspect forbids does not decide alone.
constexpr double kMostNats = 6;

double Bounded(double x) { return std::clamp(x, -kMostNats, kMostNats); }

double SquaredOver(double x, double scale) {
  const double z = Bounded(x) / scale;
  return z * z;
}

// Adds the sums of every row's tokens as clusters.
template <typename Sums>
offpolicy::ClusterSums ByRow(const TokenSet& tokens, size_t num_sums, const Sums& sums_of) {
  std::map<int64_t, std::vector<double>> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<double>& row = rows.try_emplace(tokens.row[i], num_sums, 0.0).first->second;
    sums_of(i, row);
  }
  offpolicy::ClusterSums clusters{.num_sums = static_cast<int64_t>(num_sums)};
  for (const auto& [row, sums] : rows) clusters.Add(sums);
  return clusters;
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

// Takes the mean out.
void Centre(std::vector<double>& x) {
  const double mean =
      x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  for (double& value : x) value -= mean;
}

}  // namespace

NoiseCurve::NoiseCurve(std::span<const double> logprobs, std::span<const double> rounding) {
  std::vector<std::pair<double, double>> played;  // log-prob, square of the rounding
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const double e = Bounded(rounding[i]);
    if (std::isfinite(e) && std::isfinite(logprobs[i])) played.emplace_back(logprobs[i], e * e);
  }
  std::stable_sort(played.begin(), played.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<double> prefix = {0};
  for (const auto& [logprob, square] : played) prefix.push_back(prefix.back() + square);
  // Root mean squares over the 80 tokens around. Near certainty the scale falls with the log-prob, and
  // fewer are taken; it is level at the other end.
  const size_t half = 40;
  for (size_t i = 0; i < played.size(); ++i) {
    const size_t reach = std::min(half, played.size() - 1 - i) + 3;
    const size_t from = i >= reach ? i - reach : 0;
    const size_t until = std::min(played.size(), i + reach + 1);
    logprobs_.push_back(played[i].first);
    scales_.push_back(
        std::sqrt((prefix[until] - prefix[from]) / static_cast<double>(until - from)) + 1e-5);
  }
}

double NoiseCurve::At(double logprob) const {
  if (scales_.empty()) return 1e-5;
  const auto after = std::lower_bound(logprobs_.begin(), logprobs_.end(), logprob);
  const auto i = std::min(static_cast<size_t>(after - logprobs_.begin()), scales_.size() - 1);
  return scales_[i];
}

std::vector<double> NoiseCurve::At(std::span<const double> logprobs) const {
  std::vector<double> scales;
  for (const double logprob : logprobs) scales.push_back(At(logprob));
  return scales;
}

ResidualSize SizeOf(std::span<const double> residual, const TokenSet& tokens) {
  ResidualSize size;
  double squares = 0, abs = 0, sum = 0, in_scale = 0, bounded = 0, beyond = 0;
  std::vector<double> left, rounding;
  for (size_t i = 0; i < residual.size(); ++i) {
    if (std::isnan(residual[i])) continue;
    const double r = Bounded(residual[i]);
    ++size.num_tokens;
    abs += std::abs(r);
    sum += r;
    squares += r * r;
    const double z = r / tokens.scale[i];
    in_scale += z * z;
    bounded += std::min(z * z, kExtreme * kExtreme);
    beyond += std::abs(z) > 5 ? 1 : 0;
    size.num_extreme += std::abs(z) > kExtreme;
    size.largest = std::max(size.largest, std::abs(r));
    if (std::isnan(tokens.rounding[i])) continue;
    left.push_back(std::clamp(z, -4.0, 4.0));
    rounding.push_back(std::clamp(tokens.rounding[i] / tokens.scale[i], -4.0, 4.0));
  }
  if (size.num_tokens == 0) return size;
  const double n = static_cast<double>(size.num_tokens);
  size.mean_abs = abs / n;
  size.mean = sum / n;
  size.rms = std::sqrt(squares / n);
  size.in_scale = std::sqrt(in_scale / n);
  size.bounded = std::sqrt(bounded / n);
  size.tail = beyond / n;
  Centre(left);
  Centre(rounding);
  size.like_bf16 = Correlation(left, rounding);
  size.like_bf16_error = 1 / std::sqrt(std::max<double>(1, static_cast<double>(left.size())));
  return size;
}

Explained Explain(std::span<const double> gap, std::span<const double> predicted,
                  const TokenSet& tokens, bool with_intervals) {
  const auto sums_of = [&](size_t i, std::vector<double>& sums) {
    if (std::isnan(gap[i]) || std::isnan(predicted[i])) return;
    const double d = Bounded(gap[i]) / tokens.scale[i];
    const double h = Bounded(predicted[i]) / tokens.scale[i];
    sums[0] += SquaredOver(gap[i] - predicted[i], tokens.scale[i]);
    sums[1] += d * d;
    sums[2] += d * h;
    sums[3] += h * h;
  };
  const offpolicy::ClusterSums clusters = ByRow(tokens, 4, sums_of);
  const offpolicy::Statistic share = [](std::span<const double> sums) {
    return sums[1] > 0 ? 1 - sums[0] / sums[1] : 0.0;
  };
  const offpolicy::Statistic coefficient = [](std::span<const double> sums) {
    return sums[3] > 0 ? sums[2] / sums[3] : 0.0;
  };
  Explained explained;
  if (with_intervals) {
    const std::vector<offpolicy::Statistic> statistics = {share, coefficient};
    const std::vector<offpolicy::Interval> intervals =
        offpolicy::BootstrapIntervals(clusters, statistics);
    explained.share = intervals[0];
    explained.coefficient = intervals[1];
  } else {
    const std::vector<double> total = clusters.Total();
    explained.share.value = share(total);
    explained.coefficient.value = coefficient(total);
  }
  std::vector<double> d, h;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (std::isnan(gap[i]) || std::isnan(predicted[i])) continue;
    d.push_back(Bounded(gap[i]) / tokens.scale[i]);
    h.push_back(Bounded(predicted[i]) / tokens.scale[i]);
  }
  Centre(d);
  Centre(h);
  explained.correlation = Correlation(d, h);
  return explained;
}

offpolicy::Interval ShareAdvantage(std::span<const double> gap, std::span<const double> first,
                                   std::span<const double> second, const TokenSet& tokens) {
  const offpolicy::ClusterSums clusters =
      ByRow(tokens, 2, [&](size_t i, std::vector<double>& sums) {
        if (std::isnan(gap[i]) || std::isnan(first[i]) || std::isnan(second[i])) return;
        sums[0] += SquaredOver(gap[i] - second[i], tokens.scale[i]) -
                   SquaredOver(gap[i] - first[i], tokens.scale[i]);
        sums[1] += SquaredOver(gap[i], tokens.scale[i]);
      });
  const std::vector<offpolicy::Statistic> statistics = {offpolicy::RatioOfSums(0, 1)};
  return offpolicy::BootstrapIntervals(clusters, statistics, {.level = 0.99}).front();
}

}  // namespace tandem::drift
