// Training-inference mismatch (drift) metrics of one train step or capture: behaviour against
// proximal log-probs, before any clamp, with intervals (docs/metrics.md has the formulas). Used by
// the trainer's step metrics and by the drift lab. Pure functions over plain spans.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/capture/token_record.h"
#include "common/drift/drift_sums.h"
#include "common/statistics/cluster_bootstrap.h"
#include "common/statistics/quantile_sketch.h"

namespace tandem::offpolicy {

// The data that ranks merge: sums, maxima and a sketch, because means and quantiles cannot be
// merged.
struct DriftTally {
  DriftSums sums;
  QuantileSketch abs_delta;
  double max_abs_delta = 0;
  double max_abs_probability_difference = 0;
  double max_abs_sequence_log_ratio = 0;  // of abs(sum delta) over completions
  double max_w = 0, max_sequence_w = 0;   // of token weights, of products over a completion

  void Merge(const DriftTally& other);

  // True if one weight has more than half of the sum of squares. Numbers made of squared weights
  // then describe that token (or completion) and nothing else.
  bool token_weight_dominates() const { return max_w * max_w > 0.5 * sums.w2; }
  bool sequence_weight_dominates() const {
    return max_sequence_w * max_sequence_w > 0.5 * sums.sequence_w2;
  }
};
DriftTally TallyDrift(const TokenRecord& record);

// Why a number or its interval is withheld.
enum class Withheld {
  kNothing,
  kFewClusters,  // under kLeastClusters completions or groups
  kFewTokens,    // a quantile with fewer than 5 tokens above it; no interval
  kHeavyTail,    // one weight dominates, or Pareto k >= kHeavyTail with chi-square over 0.01
  kNoInterval,   // a maximum, a count or a test statistic, to which a bootstrap does not apply
};
std::string_view WithheldReason(Withheld withheld);  // as an explanation for users

struct DriftNumber {
  std::string_view name;  // "k3"
  Interval interval;      // its value is NaN where a heavy tail makes it meaningless
  Withheld withheld = Withheld::kNothing;
};

enum class ClusterBy { kSequence, kGroup };

struct DriftMetrics {
  DriftTally tally;
  double pareto_k = 0;  // of the token weights; NaN without a tail
  std::vector<DriftNumber> numbers;

  // `name` must be a metric of docs/metrics.md; any other name is a TANDEM_CHECK.
  const DriftNumber& Number(std::string_view name) const;
  double Get(std::string_view name) const { return Number(name).interval.value; }
};

// All metrics over the tokens of `record`. `cluster_by` chooses the clusters that the intervals
// resample.
DriftMetrics ComputeDriftMetrics(const TokenRecord& record,
                                 ClusterBy cluster_by = ClusterBy::kSequence,
                                 const BootstrapOptions& options = {});

// ("drift/k3", value) and, where there is an interval, ("drift/k3_low", ...) and ("drift/k3_high",
// ...), in a fixed order. These are the names in metrics.jsonl (docs/metrics.md).
std::vector<std::pair<std::string, double>> NamedDriftMetrics(const DriftMetrics& metrics);

}  // namespace tandem::offpolicy
