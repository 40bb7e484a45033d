#include "common/drift/probe_drift.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace tandem::offpolicy {
namespace {

enum Sum : size_t { kTokens, kK1, kK3, kAbs, kSquare, kNumSums };

bool AllFinite(std::span<const float> trainer, std::span<const ServerScores> servers, size_t t) {
  return std::isfinite(trainer[t]) && std::ranges::all_of(servers, [t](const ServerScores& scores) {
           return std::isfinite(scores.logprobs[t]);
         });
}

void AddToken(double delta, double share, std::array<double, kNumSums>& sums) {
  sums[kK1] -= share * delta;
  sums[kK3] += share * (std::expm1(delta) - delta);
  sums[kAbs] += share * std::abs(delta);
  sums[kSquare] += share * delta * delta;
}

}  // namespace

ProbeDrift ComputeProbeDrift(std::span<const int32_t> completion, std::span<const float> trainer,
                             std::span<const ServerScores> servers,
                             const BootstrapOptions& options) {
  ProbeDrift drift;
  std::map<int32_t, std::array<double, kNumSums>> completions;
  for (size_t t = 0; t < completion.size(); ++t) {
    if (!AllFinite(trainer, servers, t)) {
      ++drift.num_missing;
      continue;
    }
    ++drift.num_tokens;
    auto& sums = completions[completion[t]];
    sums[kTokens] += 1;
    for (const ServerScores& scores : servers) {
      AddToken(static_cast<double>(trainer[t]) - scores.logprobs[t], scores.share, sums);
    }
  }
  if (drift.num_tokens == 0) return drift;
  ClusterSums clusters{.num_sums = kNumSums};
  for (const auto& [number, sums] : completions) clusters.Add(sums);
  std::vector<Statistic> statistics;
  for (const size_t sum : {kK1, kK3, kAbs, kSquare}) {
    statistics.push_back(RatioOfSums(sum, kTokens));
  }
  const std::vector<Interval> intervals = BootstrapIntervals(clusters, statistics, options);
  drift.k1 = intervals[0];
  drift.k3 = intervals[1];
  drift.mean_abs_delta = intervals[2];
  drift.square = intervals[3];
  return drift;
}

std::vector<double> SquareSums(std::span<const int32_t> completion, int64_t num_completions,
                               std::span<const float> trainer, std::span<const float> server) {
  std::vector<double> sums(static_cast<size_t>(num_completions));
  for (size_t t = 0; t < completion.size(); ++t) {
    const double delta = static_cast<double>(trainer[t]) - server[t];
    sums[static_cast<size_t>(completion[t])] +=
        std::isfinite(delta) ? delta * delta : std::numeric_limits<double>::quiet_NaN();
  }
  return sums;
}

Interval IntervalOfDifference(const Interval& a, const Interval& b) {
  Interval difference{.value = a.value - b.value};
  difference.standard_error = std::hypot(a.standard_error, b.standard_error);
  if (!a.known() || !b.known()) return difference;
  difference.low = difference.value - std::hypot(a.value - a.low, b.high - b.value);
  difference.high = difference.value + std::hypot(a.high - a.value, b.value - b.low);
  return difference;
}

}  // namespace tandem::offpolicy
