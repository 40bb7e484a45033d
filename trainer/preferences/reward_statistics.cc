#include "trainer/preferences/reward_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/base/check.h"
#include "trainer/preferences/log_sigmoid.h"

namespace tandem::trainer {
namespace {

std::vector<ReliabilityBin> EqualBins(int64_t num_bins) {
  std::vector<ReliabilityBin> bins(static_cast<size_t>(num_bins));
  for (size_t b = 0; b < bins.size(); ++b) {
    bins[b].low = 0.5 + 0.5 * static_cast<double>(b) / static_cast<double>(num_bins);
    bins[b].high = 0.5 + 0.5 * static_cast<double>(b + 1) / static_cast<double>(num_bins);
  }
  return bins;
}

// The bin with low <= confidence < high, by the bounds themselves, so that no rounding moves a pair
// over them.
ReliabilityBin& BinOf(std::vector<ReliabilityBin>& bins, double confidence) {
  size_t b = bins.size() - 1;
  while (b > 0 && confidence < bins[b].low) --b;
  return bins[b];
}

}  // namespace

PairCalibration MeasureCalibration(const JudgedPairs& pairs, int64_t num_bins) {
  TANDEM_CHECK(num_bins >= 1 && pairs.chosen.size() == pairs.rejected.size());
  PairCalibration result{.num_pairs = static_cast<int64_t>(pairs.chosen.size()),
                         .bins = EqualBins(num_bins)};
  if (result.num_pairs == 0) return result;
  const double share = 1 / static_cast<double>(result.num_pairs);
  for (size_t i = 0; i < pairs.chosen.size(); ++i) {
    const double d = pairs.chosen[i] - pairs.rejected[i];
    const double miss = Sigmoid(-d);  // 1 - p
    result.num_ties += d == 0;
    if (d > 0) result.accuracy += share;
    result.brier_score += share * miss * miss;
    const double confidence = Sigmoid(std::abs(d));
    ReliabilityBin& bin = BinOf(result.bins, confidence);
    ++bin.num_pairs;
    bin.confidence += confidence;
    bin.accuracy += d > 0 ? 1 : d == 0 ? 0.5 : 0;
  }
  for (ReliabilityBin& bin : result.bins) {
    if (bin.num_pairs == 0) continue;
    result.expected_calibration_error += share * std::abs(bin.accuracy - bin.confidence);
    bin.accuracy /= static_cast<double>(bin.num_pairs);
    bin.confidence /= static_cast<double>(bin.num_pairs);
  }
  return result;
}

LengthBias FitLengthBias(const JudgedPairs& pairs, std::span<const int64_t> chosen_tokens,
                         std::span<const int64_t> rejected_tokens) {
  const size_t n = pairs.chosen.size();
  TANDEM_CHECK(pairs.rejected.size() == n && chosen_tokens.size() == n &&
               rejected_tokens.size() == n);
  double rewards_squared = 0, lengths_squared = 0, products = 0;
  for (size_t i = 0; i < n; ++i) {
    const double reward = pairs.chosen[i] - pairs.rejected[i];
    const auto length = static_cast<double>(chosen_tokens[i] - rejected_tokens[i]);
    rewards_squared += reward * reward;
    lengths_squared += length * length;
    products += reward * length;
  }
  LengthBias bias{.standard_error = std::numeric_limits<double>::quiet_NaN()};
  if (lengths_squared == 0) return bias;
  bias.slope = products / lengths_squared;
  if (rewards_squared > 0)
    bias.correlation = products / std::sqrt(rewards_squared * lengths_squared);
  const double residuals = std::max(0.0, rewards_squared - bias.slope * products);
  if (n >= 2)
    bias.standard_error = std::sqrt(residuals / static_cast<double>(n - 1) / lengths_squared);
  return bias;
}

EnsembleRewards AggregateEnsemble(std::span<const double> rewards, int64_t num_heads,
                                  EnsembleAggregation aggregation, double std_weight) {
  const auto heads = static_cast<size_t>(num_heads);
  TANDEM_CHECK(num_heads >= 1 && rewards.size() % heads == 0);
  const size_t n = rewards.size() / heads;
  EnsembleRewards result{std::vector<double>(n), std::vector<double>(n)};
  for (size_t i = 0; i < n; ++i) {
    double mean = 0, squares = 0, least = rewards[i];
    for (size_t k = 0; k < heads; ++k) {
      mean += rewards[k * n + i] / static_cast<double>(num_heads);
      least = std::min(least, rewards[k * n + i]);
    }
    for (size_t k = 0; k < heads; ++k) {
      squares += (rewards[k * n + i] - mean) * (rewards[k * n + i] - mean);
    }
    const double deviation = std::sqrt(squares / static_cast<double>(num_heads));
    result.disagreement[i] = deviation;
    switch (aggregation) {
      case EnsembleAggregation::kMean:
        result.reward[i] = mean;
        break;
      case EnsembleAggregation::kMin:
        result.reward[i] = least;
        break;
      case EnsembleAggregation::kMeanMinusStd:
        result.reward[i] = mean - std_weight * deviation;
    }
  }
  return result;
}

}  // namespace tandem::trainer
