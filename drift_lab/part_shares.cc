#include "drift_lab/part_shares.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace tandem::drift {
namespace {

using offpolicy::Interval;
using offpolicy::Statistic;
using offpolicy::TokenRecord;

// Sums of a completion: over its tokens, then for each part.
enum Total : size_t { kTokens, kDelta, kAbs, kSquares, kK3, kTail, kNumTotals };
enum OfPart : size_t { kPart, kPartAbs, kPartDelta, kK3First, kK3Last, kTailFirst, kTailLast, kNumOfPart };

double K3(double delta) { return std::expm1(delta) - delta; }

// Whole parts of one token, or nothing when a rung is missing.
bool ReadParts(const TokenParts& parts, size_t t, std::vector<double>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = parts.values[i][t];
    if (!std::isfinite(out[i])) return false;
  }
  return true;
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum;
}

void AddToken(const std::vector<double>& parts, double threshold, std::vector<double>& sums) {
  const double delta = Sum(parts);
  const auto over = [&](double d) { return std::abs(d) > threshold ? 1.0 : 0.0; };
  sums[kTokens] += 1;
  sums[kDelta] += delta;
  sums[kAbs] += std::abs(delta);
  sums[kSquares] += delta * delta;
  sums[kK3] += K3(delta);
  sums[kTail] += over(delta);
  double from_engine = 0, to_trainer = delta;
  for (size_t i = 0; i < parts.size(); ++i) {
    double* of = sums.data() + kNumTotals + i * kNumOfPart;
    const double after = from_engine + parts[i];
    // What is left on the trainer's side of this part; exactly 0 behind the last one.
    const double left = i + 1 == parts.size() ? 0 : to_trainer - parts[i];
    of[kPart] += parts[i];
    of[kPartAbs] += std::abs(parts[i]);
    of[kPartDelta] += parts[i] * delta;
    of[kK3First] += K3(after) - K3(from_engine);
    of[kK3Last] += K3(to_trainer) - K3(left);
    of[kTailFirst] += over(after) - over(from_engine);
    of[kTailLast] += over(to_trainer) - over(left);
    from_engine = after;
    to_trainer = left;
  }
}

double TailThreshold(const std::vector<double>& abs_deltas) {
  if (abs_deltas.empty()) return 0;
  std::vector<double> sorted = abs_deltas;
  const size_t place = sorted.size() * 99 / 100;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(place), sorted.end());
  return sorted[std::min(place, sorted.size() - 1)];
}

Statistic Ratio(size_t numerator, size_t denominator) {
  return [=](std::span<const double> sums) { return sums[numerator] / sums[denominator]; };
}

Statistic MeanOfTwo(size_t first, size_t last, size_t denominator) {
  return [=](std::span<const double> sums) {
    return (sums[first] + sums[last]) / 2 / sums[denominator];
  };
}

}  // namespace

PartShares ComputePartShares(const TokenRecord& record, const TokenParts& parts,
                             const offpolicy::BootstrapOptions& options) {
  PartShares shares;
  const size_t k = parts.parts.size();
  std::vector<double> token(k), abs_deltas;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t]) continue;
    if (ReadParts(parts, t, token)) {
      abs_deltas.push_back(std::abs(Sum(token)));
    } else {
      ++shares.num_missing;
    }
  }
  shares.num_tokens = static_cast<int64_t>(abs_deltas.size());
  shares.tail_threshold = TailThreshold(abs_deltas);
  if (shares.num_tokens == 0) return shares;

  const size_t width = kNumTotals + k * kNumOfPart;
  std::map<int32_t, std::vector<double>> sequences;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !ReadParts(parts, t, token)) continue;
    std::vector<double>& sums = sequences[record.sequence[t]];
    sums.resize(width);
    AddToken(token, shares.tail_threshold, sums);
  }
  offpolicy::ClusterSums clusters{.num_sums = static_cast<int64_t>(width)};
  for (const auto& [sequence, sums] : sequences) {
    clusters.values.insert(clusters.values.end(), sums.begin(), sums.end());
  }
  std::vector<Statistic> statistics = {Ratio(kDelta, kTokens), Ratio(kAbs, kTokens),
                                       Ratio(kSquares, kTokens), Ratio(kK3, kTokens)};
  for (size_t i = 0; i < k; ++i) {
    const size_t of = kNumTotals + i * kNumOfPart;
    statistics.push_back(Ratio(of + kPart, kTokens));
    statistics.push_back(Ratio(of + kPartAbs, kTokens));
    statistics.push_back(Ratio(of + kPartDelta, kSquares));
    statistics.push_back(MeanOfTwo(of + kK3First, of + kK3Last, kK3));
    statistics.push_back(MeanOfTwo(of + kTailFirst, of + kTailLast, kTail));
  }
  const std::vector<Interval> intervals =
      offpolicy::BootstrapIntervals(clusters, statistics, options);
  shares.total_mean = intervals[0];
  shares.total_mean_abs = intervals[1];
  shares.total_square = intervals[2];
  shares.total_k3 = intervals[3];
  const std::vector<double> total = clusters.Total();
  for (size_t i = 0; i < k; ++i) {
    const Interval* of = &intervals[4 + 5 * i];
    const double* sums = total.data() + kNumTotals + i * kNumOfPart;
    shares.parts.push_back({.part = parts.parts[i],
                            .mean = of[0],
                            .mean_abs = of[1],
                            .square = of[2],
                            .k3 = of[3],
                            .tail = of[4],
                            .k3_first = sums[kK3First] / total[kK3],
                            .k3_last = sums[kK3Last] / total[kK3],
                            .tail_first = sums[kTailFirst] / total[kTail],
                            .tail_last = sums[kTailLast] / total[kTail]});
  }
  return shares;
}

}  // namespace tandem::drift
