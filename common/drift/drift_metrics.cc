#include "common/drift/drift_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "common/base/check.h"
#include "common/statistics/distributions.h"

namespace tandem::offpolicy {
namespace {

// What must hold for a number to be meaningful.
enum class Needs { kTokens, kTokenTail, kSequenceTail };

// A metric that is a smooth function of sums, and therefore has a bootstrap interval.
struct SmoothMetric {
  std::string_view name;
  double (DriftSums::*of)() const;
  Needs needs = Needs::kTokens;
};

constexpr SmoothMetric kSmooth[] = {
    {"mean_delta", &DriftSums::mean_delta},
    {"k1", &DriftSums::k1},
    {"k2", &DriftSums::k2},
    {"k3", &DriftSums::mean_k3},
    {"reverse_kl", &DriftSums::reverse_kl, Needs::kTokenTail},
    {"chi2", &DriftSums::chi2, Needs::kTokenTail},
    {"ess_fraction", &DriftSums::ess_fraction},
    {"mean_w", &DriftSums::mean_w},
    {"mean_abs_delta", &DriftSums::mean_abs_delta},
    {"mean_exp_abs_delta", &DriftSums::mean_exp_abs_delta},
    {"share_above_1e6", &DriftSums::share_above_1e6},
    {"pearson_probability", &DriftSums::pearson_probability},
    {"mean_abs_probability_difference", &DriftSums::mean_abs_probability_difference},
    {"sequence_log_ratio_sum_mean", &DriftSums::sequence_log_ratio_sum},
    {"sequence_log_ratio_mean_mean", &DriftSums::sequence_log_ratio_mean},
    {"log_ppl_gap", &DriftSums::log_ppl_gap},
    {"sequence_mean_w", &DriftSums::sequence_mean_w, Needs::kSequenceTail},
    {"sequence_chi2", &DriftSums::sequence_chi2, Needs::kSequenceTail},
    {"sequence_ess_fraction", &DriftSums::sequence_ess_fraction},
    {"positive_mean_w", &DriftSums::positive_mean_w},
    {"negative_mean_w", &DriftSums::negative_mean_w},
    {"positive_mean_delta", &DriftSums::positive_mean_delta},
    {"negative_mean_delta", &DriftSums::negative_mean_delta},
};

struct QuantileMetric {
  std::string_view name;
  double q;
};
constexpr QuantileMetric kQuantiles[] = {{"abs_delta_p50", 0.5},
                                         {"abs_delta_p90", 0.9},
                                         {"abs_delta_p99", 0.99},
                                         {"abs_delta_p999", 0.999}};

// The histogram of each cluster. All clusters share one list of bins, in rising order.
struct BinnedClusters {
  std::vector<int32_t> bins;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> counts;  // (index into bins, count)
};

// Quantiles are not functions of sums, so BootstrapIntervals cannot resample them. But a quantile
// of a QuantileSketch is a function of bin counts, and these add up over clusters: each replicate
// adds the sparse histograms of the resampled clusters and reads the quantile from the total.
BinnedClusters BinClusters(const TokenRecord& record, ClusterBy cluster_by) {
  std::map<int32_t, std::map<int32_t, int32_t>> clusters;
  std::map<int32_t, int32_t> places;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !record.IsFinite(t)) continue;
    const int32_t s = record.sequence[t];
    const int32_t cluster = cluster_by == ClusterBy::kSequence ? s : record.group[s];
    const int32_t bin = QuantileSketch::BinOf(std::abs(record.Delta(t)));
    ++clusters[cluster][bin];
    places[bin] = 0;
  }
  BinnedClusters binned;
  for (auto& [bin, place] : places) {
    place = static_cast<int32_t>(binned.bins.size());
    binned.bins.push_back(bin);
  }
  for (const auto& [cluster, counts] : clusters) {
    auto& sparse = binned.counts.emplace_back();
    for (const auto& [bin, count] : counts) sparse.emplace_back(places[bin], count);
  }
  return binned;
}

// Quantiles of a resample, in which each cluster occurs `times` times.
class BinnedQuantiles {
 public:
  explicit BinnedQuantiles(const BinnedClusters& clusters)
      : clusters_(clusters), totals_(clusters.bins.size()) {}

  template <typename Times>
  void Fill(const Times& times) {
    std::fill(totals_.begin(), totals_.end(), 0);
    count_ = 0;
    for (size_t c = 0; c < clusters_.counts.size(); ++c) {
      const int64_t n = times(c);
      if (n == 0) continue;
      for (const auto& [place, count] : clusters_.counts[c]) {
        totals_[static_cast<size_t>(place)] += n * count;
        count_ += n * count;
      }
    }
  }

  double Quantile(double q) const {
    const auto rank = static_cast<int64_t>(q * static_cast<double>(count_ - 1));
    int64_t below = 0;
    for (size_t i = 0; i < totals_.size(); ++i) {
      below += totals_[i];
      if (below > rank) return QuantileSketch::ValueOf(clusters_.bins[i]);
    }
    return 0;
  }

 private:
  const BinnedClusters& clusters_;
  std::vector<int64_t> totals_;
  int64_t count_ = 0;
};

void AddQuantiles(const TokenRecord& record, ClusterBy cluster_by, const BootstrapOptions& options,
                  DriftMetrics& metrics) {
  const BinnedClusters clusters = BinClusters(record, cluster_by);
  const auto num_clusters = static_cast<int64_t>(clusters.counts.size());
  constexpr size_t kCount = std::size(kQuantiles);
  std::vector<double> replicates[kCount], leave_one_out[kCount];
  BinnedQuantiles sample(clusters);
  if (num_clusters >= kLeastClusters) {
    ClusterResampler resampler(num_clusters, options.seed);
    for (int64_t r = 0; r < options.replicates; ++r) {
      const std::span<const int32_t> counts = resampler.Next();
      sample.Fill([&](size_t c) { return counts[c]; });
      for (size_t k = 0; k < kCount; ++k) {
        replicates[k].push_back(sample.Quantile(kQuantiles[k].q));
      }
    }
    for (size_t out = 0; out < clusters.counts.size(); ++out) {
      sample.Fill([&](size_t c) { return c == out ? 0 : 1; });
      for (size_t k = 0; k < kCount; ++k) {
        leave_one_out[k].push_back(sample.Quantile(kQuantiles[k].q));
      }
    }
  }
  const double tokens = metrics.tally.sums.tokens;
  for (size_t k = 0; k < kCount; ++k) {
    DriftNumber number{kQuantiles[k].name,
                       {.value = metrics.tally.abs_delta.Quantile(kQuantiles[k].q)}};
    if (num_clusters < kLeastClusters) {
      number.withheld = Withheld::kFewClusters;
    } else if (tokens * (1 - kQuantiles[k].q) < 5) {
      number.withheld = Withheld::kFewTokens;
    } else {
      number.interval =
          BcaInterval(number.interval.value, replicates[k], leave_one_out[k], options.level);
    }
    metrics.numbers.push_back(number);
  }
}

void AddSmooth(const ClusterSums& clusters, const BootstrapOptions& options,
               DriftMetrics& metrics) {
  std::vector<Statistic> statistics;
  for (const SmoothMetric& metric : kSmooth) {
    statistics.push_back(
        [of = metric.of](std::span<const double> row) { return (DriftSums::FromRow(row).*of)(); });
  }
  const std::vector<Interval> intervals = BootstrapIntervals(clusters, statistics, options);
  const DriftTally& tally = metrics.tally;
  const bool heavy = metrics.pareto_k >= kHeavyTail && tally.sums.chi2() > 0.01;
  for (size_t k = 0; k < statistics.size(); ++k) {
    const SmoothMetric& metric = kSmooth[k];
    DriftNumber number{metric.name, intervals[k]};
    number.interval.value = (tally.sums.*metric.of)();
    const bool several = tally.sums.tokens > 1;
    if (several &&
        ((metric.needs == Needs::kTokenTail && (heavy || tally.token_weight_dominates())) ||
         (metric.needs == Needs::kSequenceTail && tally.sums.sequences > 1 &&
          tally.sequence_weight_dominates()))) {
      number = {
          metric.name, {.value = std::numeric_limits<double>::quiet_NaN()}, Withheld::kHeavyTail};
    } else if (!number.interval.known()) {
      number.withheld = Withheld::kFewClusters;
    }
    metrics.numbers.push_back(number);
  }
}

void AddPlain(DriftMetrics& metrics) {
  const DriftTally& tally = metrics.tally;
  const DriftSums& sums = tally.sums;
  const auto add = [&](std::string_view name, double value) {
    metrics.numbers.push_back({name, {.value = value}, Withheld::kNoInterval});
  };
  add("num_tokens", sums.tokens);
  add("num_nonfinite", sums.nonfinite);
  add("mean_w_stderr", sums.mean_w_stderr());
  add("mean_w_z", sums.mean_w_z());
  // Without the entropies of a sampler there is nothing to test it by.
  const bool tested = sums.tokens == 0 || sums.surprise_variance > 0 || sums.surprise != 0;
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  add("calibration_z", tested ? sums.calibration_z() : unknown);
  add("calibration_surprise", tested ? sums.calibration_surprise() : unknown);
  add("max_abs_delta", tally.max_abs_delta);
  add("max_abs_probability_difference", tally.max_abs_probability_difference);
  add("sequence_log_ratio_max", tally.max_abs_sequence_log_ratio);
  add("max_weight", sums.tokens > 0 ? tally.max_w : 1);
  add("pareto_k", metrics.pareto_k);
  add("positive_tokens", sums.positive_tokens);
  add("negative_tokens", sums.negative_tokens);
}

double TailIndex(const TokenRecord& record) {
  std::vector<double> weights;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (record.mask[t] && record.IsFinite(t)) weights.push_back(std::exp(record.Delta(t)));
  }
  return ParetoTailIndex(weights);
}

}  // namespace

void DriftTally::Merge(const DriftTally& other) {
  sums.Merge(other.sums);
  abs_delta.Merge(other.abs_delta);
  max_abs_delta = std::max(max_abs_delta, other.max_abs_delta);
  max_abs_probability_difference =
      std::max(max_abs_probability_difference, other.max_abs_probability_difference);
  max_abs_sequence_log_ratio =
      std::max(max_abs_sequence_log_ratio, other.max_abs_sequence_log_ratio);
  max_w = std::max(max_w, other.max_w);
  max_sequence_w = std::max(max_sequence_w, other.max_sequence_w);
}

DriftTally TallyDrift(const TokenRecord& record) {
  DriftTally tally;
  for (const DriftSums& sums : SumBySequence(record)) {
    tally.sums.Merge(sums);
    tally.max_abs_sequence_log_ratio =
        std::max(tally.max_abs_sequence_log_ratio, std::abs(sums.delta));
    tally.max_sequence_w = std::max(tally.max_sequence_w, sums.sequence_w);
  }
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !record.IsFinite(t)) continue;
    const double delta = record.Delta(t);
    tally.abs_delta.Add(std::abs(delta));
    tally.max_abs_delta = std::max(tally.max_abs_delta, std::abs(delta));
    tally.max_w = std::max(tally.max_w, std::exp(delta));
    const double difference = std::exp(static_cast<double>(record.proximal_logprobs[t])) -
                              std::exp(static_cast<double>(record.behaviour_logprobs[t]));
    tally.max_abs_probability_difference =
        std::max(tally.max_abs_probability_difference, std::abs(difference));
  }
  return tally;
}

std::string_view WithheldReason(Withheld withheld) {
  constexpr std::string_view kNames[] = {
      "",
      "too few completions or groups for an interval (8 at least)",
      "too few tokens above this quantile",
      "a few weights dominate: no number would mean anything",
      "not a quantity that resampling gives an interval for",
  };
  return kNames[static_cast<size_t>(withheld)];
}

const DriftNumber& DriftMetrics::Number(std::string_view name) const {
  const auto found = std::ranges::find(numbers, name, &DriftNumber::name);
  TANDEM_CHECK(found != numbers.end());
  return *found;
}

DriftMetrics ComputeDriftMetrics(const TokenRecord& record, ClusterBy cluster_by,
                                 const BootstrapOptions& options) {
  DriftMetrics metrics{.tally = TallyDrift(record), .pareto_k = TailIndex(record)};
  const std::vector<DriftSums> sequences = SumBySequence(record);
  AddSmooth(cluster_by == ClusterBy::kSequence ? SequenceClusters(sequences)
                                               : GroupClusters(sequences, record.group),
            options, metrics);
  AddQuantiles(record, cluster_by, options, metrics);
  AddPlain(metrics);
  return metrics;
}

std::vector<std::pair<std::string, double>> NamedDriftMetrics(const DriftMetrics& metrics) {
  std::vector<std::pair<std::string, double>> named;
  for (const DriftNumber& number : metrics.numbers) {
    const std::string name = "drift/" + std::string(number.name);
    named.emplace_back(name, number.interval.value);
    if (!number.interval.known()) continue;
    named.emplace_back(name + "_low", number.interval.low);
    named.emplace_back(name + "_high", number.interval.high);
  }
  return named;
}

}  // namespace tandem::offpolicy
