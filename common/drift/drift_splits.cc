#include "common/drift/drift_splits.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"

namespace tandem::offpolicy {
namespace {

constexpr double kEntropyEdges[] = {0.01, 0.1, 0.5, 1, 2, 4};

// 0 for value < first, and one more for every doubling.
int DoublingBucket(int64_t value, int64_t first) {
  int bucket = 0;
  for (int64_t edge = first; value >= edge; edge *= 2) ++bucket;
  return bucket;
}

std::string Range(int64_t low, int64_t high) {
  return low == high ? absl::StrCat(low) : absl::StrCat(low, "-", high);
}

int BucketOf(const TokenRecord& record, SplitBy by, size_t t) {
  const int32_t length = record.length[static_cast<size_t>(record.sequence[t])];
  const int32_t position = record.position[t];
  switch (by) {
    case SplitBy::kLength:
      return LengthBucket(length);
    case SplitBy::kPosition:
      return 10 * position / length;
    case SplitBy::kEntropy:
      return static_cast<int>(std::upper_bound(std::begin(kEntropyEdges), std::end(kEntropyEdges),
                                               static_cast<double>(record.entropies[t])) -
                              std::begin(kEntropyEdges));
    case SplitBy::kVersionLag:
      return record.version_lag[t] < 3 ? record.version_lag[t]
                                       : 3 + DoublingBucket(record.version_lag[t] - 1, 4);
    case SplitBy::kPlace:
      return position == 0 ? 0 : position == length - 1 ? 2 : 1;
    case SplitBy::kTurn:
      return record.turn[t] <= 8 ? record.turn[t] : 9 + DoublingBucket(record.turn[t] - 1, 16);
    case SplitBy::kAdvantageSign:
      break;
  }
  return record.advantages[t] > 0 ? 0 : record.advantages[t] < 0 ? 1 : 2;
}

std::string LabelOf(SplitBy by, int bucket) {
  switch (by) {
    case SplitBy::kLength:
      return LengthBucketLabel(bucket);
    case SplitBy::kPosition:
      return absl::StrCat(10 * bucket, "-", 10 * (bucket + 1), "%");
    case SplitBy::kEntropy: {
      const std::string low = bucket == 0 ? "0" : absl::StrCat(kEntropyEdges[bucket - 1]);
      return bucket == std::ssize(kEntropyEdges) ? absl::StrCat(low, "-")
                                                 : absl::StrCat(low, "-", kEntropyEdges[bucket]);
    }
    case SplitBy::kVersionLag:
      if (bucket < 3) return absl::StrCat(bucket);
      return Range((int64_t{2} << (bucket - 3)) + 1, int64_t{4} << (bucket - 3));
    case SplitBy::kPlace:
      return bucket == 0 ? "first" : bucket == 2 ? "last" : "between";
    case SplitBy::kTurn:
      if (bucket <= 8) return absl::StrCat(bucket);
      return Range((int64_t{8} << (bucket - 9)) + 1, int64_t{16} << (bucket - 9));
    case SplitBy::kAdvantageSign:
      break;
  }
  return bucket == 0 ? "positive" : bucket == 1 ? "negative" : "zero";
}

DriftBucket MakeBucket(SplitBy by, int bucket, const std::map<int32_t, DriftSums>& sequences,
                       const BootstrapOptions& options) {
  DriftBucket result{.label = LabelOf(by, bucket)};
  std::vector<DriftSums> clusters;
  for (const auto& [sequence, sums] : sequences) {
    result.sums.Merge(sums);
    clusters.push_back(sums);
  }
  std::vector<Statistic> statistics;
  for (double (DriftSums::*of)() const : {&DriftSums::mean_delta, &DriftSums::mean_abs_delta,
                                          &DriftSums::mean_k3, &DriftSums::mean_w}) {
    statistics.push_back(
        [of](std::span<const double> row) { return (DriftSums::FromRow(row).*of)(); });
  }
  const std::vector<Interval> intervals =
      BootstrapIntervals(SequenceClusters(clusters), statistics, options);
  result.mean_delta = intervals[0];
  result.mean_abs_delta = intervals[1];
  result.k3 = intervals[2];
  result.mean_w = intervals[3];
  return result;
}

}  // namespace

int LengthBucket(int64_t length) { return DoublingBucket(length, 16); }

std::string LengthBucketLabel(int bucket) {
  return bucket == 0 ? "1-15" : Range(int64_t{8} << bucket, (int64_t{16} << bucket) - 1);
}

std::string_view SplitName(SplitBy by) {
  constexpr std::string_view kNames[] = {"length", "position",       "entropy", "version_lag",
                                         "place",  "advantage_sign", "turn"};
  return kNames[static_cast<size_t>(by)];
}

std::vector<DriftBucket> BucketDrift(const TokenRecord& record, SplitBy by,
                                     const BootstrapOptions& options) {
  if (by == SplitBy::kTurn && record.turn.empty()) return {};
  std::map<int, std::map<int32_t, DriftSums>> buckets;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !record.IsFinite(t)) continue;
    if (by == SplitBy::kEntropy && !std::isfinite(record.entropies[t])) continue;
    buckets[BucketOf(record, by, t)][record.sequence[t]].AddToken(record, t);
  }
  std::vector<DriftBucket> result;
  for (const auto& [bucket, sequences] : buckets) {
    result.push_back(MakeBucket(by, bucket, sequences, options));
  }
  return result;
}

}  // namespace tandem::offpolicy
