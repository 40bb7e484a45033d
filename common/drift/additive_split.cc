#include "common/drift/additive_split.h"

#include <cmath>
#include <map>

namespace tandem::offpolicy {
namespace {

// The sums of a completion: tokens, delta, delta^2, and then for each part its value, its absolute
// value and its product with delta.
constexpr size_t kTokens = 0, kDeltas = 1, kSquares = 2, kParts = 3;
constexpr size_t kNumSums = kParts + 3 * kNumSplitParts;

bool HasScores(const TokenRecord& record, const SplitScores& scores, size_t t) {
  return record.IsFinite(t) && std::isfinite(scores.engine[t]) && std::isfinite(scores.cast[t]) &&
         std::isfinite(scores.masters[t]);
}

void AddToken(const TokenRecord& record, const SplitScores& scores, size_t t, double* sums) {
  const double delta = record.Delta(t);
  const auto parts = SplitToken(record, scores, t);
  sums[kTokens] += 1;
  sums[kDeltas] += delta;
  sums[kSquares] += delta * delta;
  for (size_t i = 0; i < parts.size(); ++i) {
    sums[kParts + 3 * i] += parts[i];
    sums[kParts + 3 * i + 1] += std::abs(parts[i]);
    sums[kParts + 3 * i + 2] += parts[i] * delta;
  }
}

}  // namespace

std::string_view SplitPartName(SplitPart part) {
  constexpr std::string_view kNames[] = {"record", "engine", "cast", "staleness"};
  return kNames[static_cast<size_t>(part)];
}

std::array<double, kNumSplitParts> SplitToken(const TokenRecord& record, const SplitScores& scores,
                                              size_t t) {
  const double ends[] = {record.behaviour_logprobs[t], scores.engine[t], scores.cast[t],
                         scores.masters[t], record.proximal_logprobs[t]};
  std::array<double, kNumSplitParts> parts;
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = ends[i + 1] - ends[i];
  return parts;
}

AdditiveSplit ComputeAdditiveSplit(const TokenRecord& record, const SplitScores& scores,
                                   const BootstrapOptions& options) {
  AdditiveSplit split;
  std::map<int32_t, std::array<double, kNumSums>> sequences;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t]) continue;
    if (!HasScores(record, scores, t)) {
      ++split.num_missing;
      continue;
    }
    ++split.num_tokens;
    AddToken(record, scores, t, sequences[record.sequence[t]].data());
  }
  if (split.num_tokens == 0) return split;
  ClusterSums clusters{.num_sums = kNumSums};
  for (const auto& [sequence, sums] : sequences) clusters.Add(sums);
  std::vector<Statistic> statistics;
  for (size_t i = 0; i < kNumSplitParts; ++i) {
    statistics.push_back(RatioOfSums(kParts + 3 * i, kTokens));
    statistics.push_back(RatioOfSums(kParts + 3 * i + 1, kTokens));
    statistics.push_back(RatioOfSums(kParts + 3 * i + 2, kSquares));
  }
  statistics.push_back(RatioOfSums(kDeltas, kTokens));
  const std::vector<Interval> intervals = BootstrapIntervals(clusters, statistics, options);
  for (size_t i = 0; i < kNumSplitParts; ++i) {
    split.parts[i] = {intervals[3 * i], intervals[3 * i + 1], intervals[3 * i + 2]};
  }
  split.mean_delta = intervals.back();
  return split;
}

}  // namespace tandem::offpolicy
