#include "drift_lab/ablation/part_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

namespace tandem::drift {
namespace {

using offpolicy::Interval;
using offpolicy::Statistic;
using offpolicy::TokenRecord;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Measures = std::array<double, kNumMeasures>;

Measures MeasuresOf(double delta, double threshold) {
  return {delta * delta, std::expm1(delta) - delta, std::abs(delta) > threshold ? 1.0 : 0.0};
}

// Where the sums of a completion are in its row: totals, then ablation steps (all factors together
// are one step), then parts, then cells. Rows of completions add up, so the bootstrap can resample
// them, and every share is a function of the added row.
struct Layout {
  size_t num_parts = 0, first_factor = 0, num_factors = 0;

  size_t num_steps() const { return num_parts - num_factors + (num_factors > 0 ? 1 : 0); }
  bool is_factor(size_t part) const {
    return part >= first_factor && part < first_factor + num_factors;
  }
  size_t step_of(size_t part) const {
    if (num_factors == 0 || part <= first_factor) return part;
    return is_factor(part) ? first_factor : part - num_factors + 1;
  }

  static constexpr size_t kTokens = 0, kDelta = 1, kAbs = 2;
  static size_t total(size_t measure) { return 3 + measure; }
  size_t increment(size_t step, size_t measure, bool last) const {
    return 3 + kNumMeasures + (step * kNumMeasures + measure) * 2 + (last ? 1 : 0);
  }
  size_t mean(size_t part) const { return increment(num_steps(), 0, false) + 2 * part; }
  size_t mean_abs(size_t part) const { return mean(part) + 1; }
  size_t cell(size_t cell, size_t measure) const {
    return mean(num_parts) + cell * kNumMeasures + measure;
  }
  size_t num_cells() const { return num_factors == 0 ? 0 : size_t{1} << num_factors; }
  size_t width() const { return cell(num_cells(), 0); }
};

// The parts and cells of one token. Read returns false if a step could not score it.
struct Token {
  std::vector<double> parts, cells;

  Token(const TokenParts& all) : parts(all.parts.size()), cells(all.cells.size()) {}

  bool Read(const TokenParts& all, size_t t) {
    bool whole = true;
    for (size_t i = 0; i < parts.size(); ++i) whole &= std::isfinite(parts[i] = all.values[i][t]);
    for (size_t c = 0; c < cells.size(); ++c) whole &= std::isfinite(cells[c] = all.cells[c][t]);
    return whole;
  }
  double delta() const {
    double sum = 0;
    for (const double part : parts) sum += part;
    return sum;
  }
};

// The parts of a token, with those of all factors added up to one step.
std::vector<double> StepsOf(const Token& token, const Layout& layout) {
  std::vector<double> steps(layout.num_steps());
  for (size_t i = 0; i < token.parts.size(); ++i) steps[layout.step_of(i)] += token.parts[i];
  return steps;
}

void AddSteps(const std::vector<double>& steps, double threshold, const Layout& layout,
              std::vector<double>& sums) {
  double from_engine = 0, to_trainer = 0;
  for (const double step : steps) to_trainer += step;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double after = from_engine + steps[i];
    // The sum of the steps that remain on the trainer's side; exactly 0 after the last one.
    const double left = i + 1 == steps.size() ? 0 : to_trainer - steps[i];
    const Measures up_to = MeasuresOf(after, threshold),
                   before = MeasuresOf(from_engine, threshold);
    const Measures with = MeasuresOf(to_trainer, threshold), without = MeasuresOf(left, threshold);
    for (size_t m = 0; m < kNumMeasures; ++m) {
      sums[layout.increment(i, m, false)] += up_to[m] - before[m];
      sums[layout.increment(i, m, true)] += with[m] - without[m];
    }
    from_engine = after;
    to_trainer = left;
  }
}

void AddToken(const Token& token, double threshold, const Layout& layout,
              std::vector<double>& sums) {
  const double delta = token.delta();
  sums[Layout::kTokens] += 1;
  sums[Layout::kDelta] += delta;
  sums[Layout::kAbs] += std::abs(delta);
  const Measures measures = MeasuresOf(delta, threshold);
  for (size_t m = 0; m < kNumMeasures; ++m) sums[Layout::total(m)] += measures[m];
  AddSteps(StepsOf(token, layout), threshold, layout, sums);
  for (size_t i = 0; i < token.parts.size(); ++i) {
    const double alone =
        layout.is_factor(i) ? token.cells[size_t{1} << (i - layout.first_factor)] : token.parts[i];
    sums[layout.mean(i)] += token.parts[i];
    sums[layout.mean_abs(i)] += std::abs(alone);
  }
  for (size_t c = 0; c < token.cells.size(); ++c) {
    const Measures of_cell = MeasuresOf(token.cells[c], threshold);
    for (size_t m = 0; m < kNumMeasures; ++m) sums[layout.cell(c, m)] += of_cell[m];
  }
}

double TailThreshold(std::vector<double> abs_deltas) {
  if (abs_deltas.empty()) return 0;
  const size_t place = abs_deltas.size() * 99 / 100;
  std::nth_element(abs_deltas.begin(), abs_deltas.begin() + static_cast<std::ptrdiff_t>(place),
                   abs_deltas.end());
  return abs_deltas[place];
}

Statistic Ratio(size_t numerator, size_t denominator) {
  return [=](std::span<const double> sums) { return sums[numerator] / sums[denominator]; };
}

// A step's share of a measure: the increment from the engine's end (weight 0), from the trainer's
// end (weight 1), or their mean (weight 0.5).
double StepShare(std::span<const double> sums, const Layout& layout, size_t step, size_t measure,
                 double weight_of_last) {
  const double first = sums[layout.increment(step, measure, false)];
  const double last = sums[layout.increment(step, measure, true)];
  return ((1 - weight_of_last) * first + weight_of_last * last) / sums[Layout::total(measure)];
}

// A factor's share of all factors together, with `weights` over the cells (Shapley or a bound); 0
// where all factors together have no effect.
double FactorShareOf(std::span<const double> sums, const Layout& layout, size_t measure,
                     std::span<const double> weights) {
  double share = 0;
  for (size_t c = 0; c < weights.size(); ++c) share += weights[c] * sums[layout.cell(c, measure)];
  const double all = sums[layout.cell(weights.size() - 1, measure)];
  return all != 0 ? share / all : 0;
}

Statistic ShareStatistic(const Layout& layout, size_t part, size_t measure) {
  if (!layout.is_factor(part)) {
    return [=](std::span<const double> sums) {
      return StepShare(sums, layout, layout.step_of(part), measure, 0.5);
    };
  }
  const auto weights = ShapleyWeights(static_cast<int>(layout.num_factors),
                                      static_cast<int>(part - layout.first_factor));
  return [=](std::span<const double> sums) {
    return StepShare(sums, layout, layout.step_of(part), measure, 0.5) *
           FactorShareOf(sums, layout, measure, weights);
  };
}

void FillBounds(std::span<const double> total, const Layout& layout, size_t part,
                PartShare& share) {
  for (size_t m = 0; m < kNumMeasures; ++m) {
    MeasureShare& of = share.shares[m];
    const size_t step = layout.step_of(part);
    if (!layout.is_factor(part)) {
      of.first = StepShare(total, layout, step, m, 0);
      of.last = StepShare(total, layout, step, m, 1);
      continue;
    }
    const int k = static_cast<int>(layout.num_factors);
    const int factor = static_cast<int>(part - layout.first_factor);
    const double all = StepShare(total, layout, step, m, 0.5);
    of.first = all * FactorShareOf(total, layout, m, AloneWeights(k, factor));
    of.last = all * FactorShareOf(total, layout, m, LastWeights(k, factor));
  }
}

std::vector<Statistic> AllStatistics(const Layout& layout) {
  std::vector<Statistic> statistics = {Ratio(Layout::kDelta, Layout::kTokens),
                                       Ratio(Layout::kAbs, Layout::kTokens)};
  for (size_t m = 0; m < kNumMeasures; ++m) {
    statistics.push_back(Ratio(Layout::total(m), Layout::kTokens));
  }
  for (size_t i = 0; i < layout.num_parts; ++i) {
    statistics.push_back(Ratio(layout.mean(i), Layout::kTokens));
    statistics.push_back(Ratio(layout.mean_abs(i), Layout::kTokens));
    for (size_t m = 0; m < kNumMeasures; ++m) statistics.push_back(ShareStatistic(layout, i, m));
  }
  return statistics;
}

}  // namespace

PartShares ComputePartShares(const TokenRecord& record, const TokenParts& parts,
                             const offpolicy::BootstrapOptions& options) {
  PartShares shares;
  const Layout layout{parts.parts.size(), parts.first_factor, parts.num_factors};
  Token token(parts);
  std::vector<double> abs_deltas;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t]) continue;
    if (token.Read(parts, t)) {
      abs_deltas.push_back(std::abs(token.delta()));
    } else {
      ++shares.num_missing;
    }
  }
  shares.num_tokens = static_cast<int64_t>(abs_deltas.size());
  shares.tail_threshold = TailThreshold(std::move(abs_deltas));
  if (shares.num_tokens == 0) return shares;

  std::map<int32_t, std::vector<double>> sequences;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !token.Read(parts, t)) continue;
    std::vector<double>& sums = sequences[record.sequence[t]];
    sums.resize(layout.width());
    AddToken(token, shares.tail_threshold, layout, sums);
  }
  offpolicy::ClusterSums clusters{.num_sums = static_cast<int64_t>(layout.width())};
  for (const auto& [sequence, sums] : sequences) {
    clusters.values.insert(clusters.values.end(), sums.begin(), sums.end());
  }
  const std::vector<Interval> intervals =
      offpolicy::BootstrapIntervals(clusters, AllStatistics(layout), options);
  auto next = intervals.begin();
  shares.total_mean = *next++;
  shares.total_mean_abs = *next++;
  for (Interval& total : shares.totals) total = *next++;
  const std::vector<double> total = clusters.Total();
  for (size_t i = 0; i < layout.num_parts; ++i) {
    PartShare& share = shares.parts.emplace_back(PartShare{.part = parts.parts[i]});
    share.mean = *next++;
    share.mean_abs = *next++;
    for (MeasureShare& of : share.shares) of.share = *next++;
    FillBounds(total, layout, i, share);
    if (shares.total_mean_abs.value > kLogprobFloor) continue;
    share.shares.fill({.share = {.value = kNaN}, .first = kNaN, .last = kNaN});
  }
  return shares;
}

}  // namespace tandem::drift
