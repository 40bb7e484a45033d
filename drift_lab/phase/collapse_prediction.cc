#include "drift_lab/phase/collapse_prediction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace tandem::drift {
namespace {

template <Watched watched>
double Value(const TraceRow& row) {
  return At(row, watched);
}

struct PredictorRule {
  const char* name;
  double (*value)(const TraceRow&);
  double sign = 0;  // of the log of the value over that of the first rows; 0: the value itself
};

// In the order of Predictor.
constexpr std::array<PredictorRule, kNumPredictors> kRules = {{
    {"reward fall", Value<Watched::kReward>},
    {"k3", Value<Watched::kK3>},
    {"1 - ESS", [](const TraceRow& row) { return 1 - At(row, Watched::kEss); }},
    {"p99.9 abs(delta)", Value<Watched::kTail>},
    {"abs(mean w - 1)", [](const TraceRow& row) { return std::abs(At(row, Watched::kMeanW) - 1); }},
    {"share of w outside [.5, 2]", Value<Watched::kOutside>},
    {"dropped by the method", Value<Watched::kDropped>},
    {"kept, negative minus positive",
     [](const TraceRow& row) {
       return At(row, Watched::kKeptNegative) - At(row, Watched::kKeptPositive);
     }},
    {"gradient norm, fall", Value<Watched::kGradientNorm>, -1},
    {"gradient norm, spike", Value<Watched::kGradientNorm>, 1},
    {"entropy, rise", Value<Watched::kEntropy>, 1},
    {"entropy, fall", Value<Watched::kEntropy>, -1},
    {"largest logit", Value<Watched::kMaxLogit>},
}};

const PredictorRule& RuleOf(Predictor predictor) { return kRules[static_cast<size_t>(predictor)]; }

// Trailing means over kSmoothedRows.
std::vector<double> Smoothed(Predictor predictor, std::span<const TraceRow> trace) {
  std::vector<double> values;
  for (size_t row = 0; row < trace.size(); ++row) {
    double sum = 0, count = 0;
    for (size_t r = row < kSmoothedRows ? 0 : row - kSmoothedRows + 1; r <= row; ++r) {
      const double value = RuleOf(predictor).value(trace[r]);
      if (std::isnan(value)) continue;
      sum += value;
      ++count;
    }
    values.push_back(count > 0 ? sum / count : 0);
  }
  return values;
}

// log(value / value at the end of the first rows). The quotient is at least 1e-6.
std::vector<double> LogOfFirst(const std::vector<double>& values, double sign) {
  std::vector<double> out(values.size(), 0);
  for (size_t row = kSmoothedRows; row < values.size(); ++row) {
    const double first = values[kSmoothedRows - 1];
    if (first <= 0) continue;
    out[row] = sign * std::log(std::max(values[row] / first, 1e-6));
  }
  return out;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Series {
  int cluster = 0;  // of the seed
  bool odd = false;
  int halved_at = -1;
  std::vector<double> values;  // by row of the trace
};

// The sum over (a, b) of times[a] times[b] part[a][b], divided by that of `whole`: a share over
// pairs of clusters, weighted by a resample.
using Matrix = std::vector<std::vector<double>>;
double PairShare(const Matrix& part, const Matrix& whole, std::span<const int> times) {
  double part_sum = 0, whole_sum = 0;
  for (size_t a = 0; a < times.size(); ++a) {
    for (size_t b = 0; b < times.size(); ++b) {
      part_sum += times[a] * times[b] * part[a][b];
      whole_sum += times[a] * times[b] * whole[a][b];
    }
  }
  return whole_sum > 0 ? part_sum / whole_sum : kNan;
}

// How many of `sorted` are below `value`; ties count half.
double CountUnder(const std::vector<double>& sorted, double value) {
  const auto [low, high] = std::equal_range(sorted.begin(), sorted.end(), value);
  return 0.5 * static_cast<double>((low - sorted.begin()) + (high - sorted.begin()));
}

// The row `lead` steps before the collapse; -1 if that is before the run began.
int RowBefore(int halved_at, int lead) {
  return halved_at < lead ? -1 : (halved_at - lead) / kTraceStride;
}

SeedInterval Auc(const std::vector<Series>& all, int num_clusters, int lead) {
  const auto n = static_cast<size_t>(num_clusters);
  Matrix wins(n, std::vector<double>(n)), pairs(n, std::vector<double>(n));
  std::map<int, std::vector<std::vector<double>>> healthy_at;  // row -> cluster -> sorted values
  for (const Series& collapsed : all) {
    const int row = collapsed.halved_at < 0 ? -1 : RowBefore(collapsed.halved_at, lead);
    if (row < 0) continue;
    auto [entry, is_new] = healthy_at.try_emplace(row, n);
    auto& by_cluster = entry->second;
    if (is_new) {
      for (const Series& healthy : all) {
        if (healthy.halved_at < 0) {
          by_cluster[static_cast<size_t>(healthy.cluster)].push_back(
              healthy.values[static_cast<size_t>(row)]);
        }
      }
      for (auto& values : by_cluster) std::sort(values.begin(), values.end());
    }
    const auto a = static_cast<size_t>(collapsed.cluster);
    for (size_t b = 0; b < n; ++b) {
      wins[a][b] += CountUnder(by_cluster[b], collapsed.values[static_cast<size_t>(row)]);
      pairs[a][b] += static_cast<double>(by_cluster[b].size());
    }
  }
  return BootstrapOverSeeds(
      num_clusters, [&](std::span<const int> times) { return PairShare(wins, pairs, times); });
}

// The value that 95 % of the healthy runs with odd (or even) seeds never exceed.
double ThresholdOf(const std::vector<Series>& all, bool odd) {
  std::vector<double> highest;
  for (const Series& series : all) {
    if (series.odd == odd && series.halved_at < 0) {
      highest.push_back(*std::max_element(series.values.begin(), series.values.end()));
    }
  }
  if (highest.empty()) return std::numeric_limits<double>::infinity();
  std::sort(highest.begin(), highest.end());
  const double allowed = std::floor(kWantedFalseAlarms * static_cast<double>(highest.size()));
  return highest[highest.size() - 1 - static_cast<size_t>(allowed)];
}

// The step of the first row above the threshold, or -1.
int AlarmStep(const Series& series, double threshold) {
  const auto above = std::find_if(series.values.begin(), series.values.end(),
                                  [threshold](double value) { return value > threshold; });
  return above == series.values.end()
             ? -1
             : static_cast<int>(above - series.values.begin()) * kTraceStride;
}

double ClusterShare(const std::vector<double>& part, const std::vector<double>& whole,
                    std::span<const int> times) {
  double part_sum = 0, whole_sum = 0;
  for (size_t c = 0; c < times.size(); ++c) {
    part_sum += times[c] * part[c];
    whole_sum += times[c] * whole[c];
  }
  return whole_sum > 0 ? part_sum / whole_sum : kNan;
}

void StudyAlarms(const std::vector<Series>& all, int num_clusters, PredictorQuality& quality) {
  const double from_odd = ThresholdOf(all, true), from_even = ThresholdOf(all, false);
  const auto n = static_cast<size_t>(num_clusters);
  std::vector<double> healthy(n), alarmed(n), collapsed(n), announced(n), leads;
  for (const Series& series : all) {
    const auto c = static_cast<size_t>(series.cluster);
    const int alarm = AlarmStep(series, series.odd ? from_even : from_odd);
    if (series.halved_at < 0) {
      ++healthy[c];
      alarmed[c] += alarm >= 0;
      continue;
    }
    ++collapsed[c];
    if (alarm < 0 || alarm >= series.halved_at) continue;
    ++announced[c];
    leads.push_back(series.halved_at - alarm);
  }
  const auto share = [&](const std::vector<double>& part, const std::vector<double>& whole) {
    return BootstrapOverSeeds(
        num_clusters, [&](std::span<const int> times) { return ClusterShare(part, whole, times); });
  };
  quality.false_alarms = share(alarmed, healthy);
  quality.announced = share(announced, collapsed);
  std::sort(leads.begin(), leads.end());
  const auto quartile = [&](double q) {
    return leads.empty() ? kNan
                         : leads[static_cast<size_t>(q * static_cast<double>(leads.size() - 1))];
  };
  quality.lead_low = quartile(0.25);
  quality.lead_median = quartile(0.5);
  quality.lead_high = quartile(0.75);
}

std::vector<Series> SeriesOf(Predictor predictor, std::span<const WatchedRun> runs,
                             const std::map<int, int>& clusters) {
  std::vector<Series> all;
  for (const WatchedRun& watched : runs) {
    all.push_back({clusters.at(watched.seed), watched.seed % 2 == 1, watched.run->halved_at,
                   PredictorValues(predictor, watched.run->trace)});
  }
  return all;
}

}  // namespace

const char* PredictorName(Predictor predictor) { return RuleOf(predictor).name; }

std::vector<double> PredictorValues(Predictor predictor, std::span<const TraceRow> trace) {
  std::vector<double> values = Smoothed(predictor, trace);
  if (RuleOf(predictor).sign != 0) return LogOfFirst(values, RuleOf(predictor).sign);
  if (predictor != Predictor::kRewardFall) return values;
  double highest = 0;
  for (double& value : values) {
    highest = std::max(highest, value);
    value = highest - value;
  }
  return values;
}

CollapsePrediction StudyPrediction(std::span<const WatchedRun> runs) {
  CollapsePrediction study;
  std::map<int, int> clusters;
  for (const WatchedRun& watched : runs) {
    clusters.try_emplace(watched.seed, static_cast<int>(clusters.size()));
    const int halved_at = watched.run->halved_at;
    ++(halved_at < 0 ? study.num_healthy : study.num_collapsed);
    for (size_t i = 0; i < kLeads.size(); ++i) study.num_late_enough[i] += halved_at >= kLeads[i];
  }
  if (study.num_healthy == 0 || study.num_collapsed == 0) return study;
  const int num_clusters = static_cast<int>(clusters.size());
  for (int p = 0; p < kNumPredictors; ++p) {
    PredictorQuality quality{.predictor = static_cast<Predictor>(p)};
    const std::vector<Series> all = SeriesOf(quality.predictor, runs, clusters);
    for (size_t i = 0; i < kLeads.size(); ++i) quality.auc[i] = Auc(all, num_clusters, kLeads[i]);
    StudyAlarms(all, num_clusters, quality);
    study.predictors.push_back(quality);
  }
  return study;
}

}  // namespace tandem::drift
