#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/statistics/sample_statistics.h"
#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {
namespace {

constexpr int kNewtonSteps = 8;
constexpr int kHalvings = 14;
// A step of the temperature's logarithm below this changes no fp32 log-prob.
constexpr double kLeastStep = 1e-7;
constexpr double kLeastTemperature = 0.2, kLargestTemperature = 5;
// The relative error that fp32 rounding may leave in a filter's edge that was read off one token.
constexpr double kEdgeSlack = 2e-6;

// How much tighter the record's filter is than the attempt's: the sum of the residuals. Positive if
// the attempt retains too much probability mass. A token that the attempt removed counts against
// it.
double Slack(const HypothesisSearch& search, const Attempt& attempt) {
  double slack = 0;
  for (size_t t = 0; t < attempt.predicted.size(); ++t) {
    if (std::isinf(attempt.predicted[t])) {
      slack -= kLargestResidual;
      continue;
    }
    const double residual = Residual(search.capture().behaviour_logprobs[t], attempt.predicted[t]);
    if (!std::isnan(residual)) slack += residual;
  }
  return slack;
}

// True if the residuals are mostly positive: a filter can only raise recorded log-probs, and other
// causes raise some and lower others.
bool LooksFiltered(const HypothesisSearch& search, const Attempt& base) {
  constexpr double kLeastRaised = 0.2;
  return Slack(search, base) >
         kLeastRaised * base.fit.mean_abs * static_cast<double>(base.fit.num_tokens);
}

// One filter: its parameter in a hypothesis, and how to search it.
struct Filter {
  Part part;
  FamilySearch alone;  // the search at a fixed temperature
  double nudge;        // factor of a small step towards tighter, which stays in [least, most]
  double least, most;
  double (*get)(const RecordHypothesis&);
  void (*set)(double, RecordHypothesis&);
  double (*middle)(double, double);  // of two values
  double loosen;                     // factor of a large step towards looser
};

double Mean(double a, double b) { return (a + b) / 2; }
double GeometricMean(double a, double b) { return std::sqrt(a * b); }
double IntegerMean(double a, double b) { return std::floor((a + b) / 2); }

// A value of the filter that is too loose, and one that is not; and the hypothesis around it.
struct Bracket {
  RecordHypothesis open;
  double loose = 0, tight = 0;
};

// Halves the bracket until the record is given back or there is no value between its ends.
absl::StatusOr<Attempt> Halve(HypothesisSearch& search, const Filter& filter, Bracket bracket,
                              Attempt best) {
  for (int i = 0; i < kHalvings && !best.fit.exact(); ++i) {
    const double value = filter.middle(bracket.loose, bracket.tight);
    if (value == bracket.loose || value == bracket.tight) break;
    RecordHypothesis hypothesis = bracket.open;
    filter.set(value, hypothesis);
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, filter.part));
    (Slack(search, attempt) > 0 ? bracket.loose : bracket.tight) = value;
    KeepBetter(std::move(attempt), best);
  }
  return best;
}

// Starts from `tight`, the tightest value that leaves every sampled token in, and loosens it by
// factors until it is too loose. Then halves between the last two values.
absl::StatusOr<Attempt> LoosenAndHalve(HypothesisSearch& search, const Filter& filter,
                                       const RecordHypothesis& open, double tight, Attempt best) {
  Bracket bracket{open, tight, tight};
  for (int i = 0; i < kHalvings; ++i) {
    RecordHypothesis hypothesis = open;
    filter.set(bracket.loose, hypothesis);
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, filter.part));
    const bool too_loose = Slack(search, attempt) > 0;
    KeepBetter(std::move(attempt), best);
    if (too_loose || best.fit.exact()) break;
    bracket.tight = std::exchange(bracket.loose, filter.loosen * bracket.loose);
  }
  return Halve(search, filter, std::move(bracket), std::move(best));
}

// The slope of every log-prob in log(1/T): log p + H.
std::vector<double> SlopeInTemperature(const Attempt& attempt) {
  std::vector<double> slope(attempt.predicted.size());
  for (size_t t = 0; t < slope.size(); ++t) {
    slope[t] = double{attempt.scores.logprobs[t]} + attempt.scores.entropies[t];
  }
  return slope;
}

// How much of each of two directions is in a residual: each is fitted to what the other leaves, by
// turns (backfitting).
std::pair<double, double> FitTwoSlopes(const std::vector<double>& a, const std::vector<double>& b,
                                       const std::vector<double>& residual) {
  constexpr int kRounds = 12;
  double slope_a = 0, slope_b = 0;
  const auto without = [&](const std::vector<double>& direction, double slope) {
    std::vector<double> rest = residual;
    for (size_t t = 0; t < rest.size(); ++t) rest[t] -= slope * direction[t];
    return rest;
  };
  for (int i = 0; i < kRounds; ++i) {
    slope_a = offpolicy::FitSlope(a, without(b, slope_b));
    slope_b = offpolicy::FitSlope(b, without(a, slope_a));
  }
  return {slope_a, slope_b};
}

// Searches the filter and the temperature by turns: a Gauss-Newton step of the temperature, fitted
// to what a nudge of the filter does not explain, and then the filter again at that temperature. A
// first loop comes near; a second one lets each find its exact value.
absl::StatusOr<Attempt> SearchWithTemperature(HypothesisSearch& search, const Attempt& base,
                                              const Filter& filter) {
  constexpr int kTurns = 4;
  constexpr double kLeastTurn = 1e-3;  // of log T; below it, the second loop takes over
  TANDEM_ASSIGN_OR_RETURN(Attempt at, filter.alone(search, base));
  if (!at.hypothesis.Has(filter.part) || at.fit.exact()) return at;
  Attempt best = at;
  for (int i = 0; i < kTurns && !best.fit.exact(); ++i) {
    RecordHypothesis next = at.hypothesis;
    filter.set(std::clamp(filter.get(next) * filter.nudge, filter.least, filter.most), next);
    TANDEM_ASSIGN_OR_RETURN(const Attempt nudged, search.Try(next, filter.part));
    const double sharper =
        FitTwoSlopes(SlopeInTemperature(at), Residuals(nudged.predicted, at.predicted),
                     Residuals(search.capture().behaviour_logprobs, at.predicted))
            .first;
    next = at.hypothesis;
    next.Clear(filter.part);
    next.temperature *= std::exp(-std::clamp(sharper, -0.5, 0.5));
    TANDEM_ASSIGN_OR_RETURN(at, search.Try(next, Part::kTemperature));
    TANDEM_ASSIGN_OR_RETURN(at, filter.alone(search, at));
    KeepBetter(at, best);
    if (!at.hypothesis.Has(filter.part) || std::abs(sharper) < kLeastTurn) break;
  }
  for (int i = 0; i < kTurns && !best.fit.exact(); ++i) {
    TANDEM_RETURN_IF_ERROR(KeepBetter(SearchTemperature(search, best), best));
    TANDEM_RETURN_IF_ERROR(KeepBetter(filter.alone(search, best), best));
  }
  if (best.hypothesis.Has(filter.part)) best.part = filter.part;
  return best;
}

constexpr Filter kTopPFilter = {.part = Part::kTopP,
                                .alone = SearchTopP,
                                .nudge = 0.98,
                                .least = 1e-3,
                                .most = 0.9999,
                                .get = [](const RecordHypothesis& h) { return h.top_p; },
                                .set = [](double x, RecordHypothesis& h) { h.top_p = x; },
                                .middle = Mean,
                                .loosen = 1};
constexpr Filter kTopKFilter = {
    .part = Part::kTopK,
    .alone = SearchTopK,
    .nudge = 0.9,
    .least = 1,
    .most = 1e15,
    .get = [](const RecordHypothesis& h) { return static_cast<double>(h.top_k); },
    .set = [](double x, RecordHypothesis& h) { h.top_k = std::lround(x); },
    .middle = IntegerMean,
    .loosen = 2};
constexpr Filter kMinPFilter = {.part = Part::kMinP,
                                .alone = SearchMinP,
                                .nudge = 1.1,
                                .least = 1e-9,
                                .most = 0.999,
                                .get = [](const RecordHypothesis& h) { return h.min_p; },
                                .set = [](double x, RecordHypothesis& h) { h.min_p = x; },
                                .middle = GeometricMean,
                                .loosen = 0.5};

}  // namespace

absl::StatusOr<Attempt> SearchTemperature(HypothesisSearch& search, const Attempt& base) {
  Attempt best = base;
  for (int i = 0; i < kNewtonSteps; ++i) {
    const double step = offpolicy::FitSlope(
        SlopeInTemperature(best), Residuals(search.capture().behaviour_logprobs, best.predicted));
    RecordHypothesis hypothesis = best.hypothesis;
    hypothesis.temperature = std::clamp(hypothesis.temperature * std::exp(-step), kLeastTemperature,
                                        kLargestTemperature);
    if (!(std::abs(hypothesis.temperature - best.hypothesis.temperature) > kLeastStep)) break;
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kTemperature));
    if (attempt.fit.mean_abs >= best.fit.mean_abs) break;
    best = std::move(attempt);
  }
  // Settings are round numbers, and rounding moved the estimate by a few 1e-7.
  const double round = std::round(best.hypothesis.temperature * 1e5) / 1e5;
  if (best.part != Part::kTemperature || round == best.hypothesis.temperature) return best;
  RecordHypothesis hypothesis = best.hypothesis;
  hypothesis.temperature = round;
  TANDEM_RETURN_IF_ERROR(KeepBetter(search.Try(hypothesis, Part::kTemperature), best));
  return best;
}

absl::StatusOr<Attempt> SearchTopP(HypothesisSearch& search, const Attempt& base) {
  TANDEM_ASSIGN_OR_RETURN(const Attempt unfiltered, search.Without(base, Part::kTopP));
  Attempt best = base;
  if (!LooksFiltered(search, unfiltered)) return best;
  // The retained set of a token has at least mass p. The mass above a sampled token is less than p.
  double lightest = 1, heaviest_above = 0;
  for (size_t t = 0; t < unfiltered.predicted.size(); ++t) {
    const double residual =
        Residual(search.capture().behaviour_logprobs[t], unfiltered.predicted[t]);
    if (std::isnan(residual) || std::isinf(unfiltered.predicted[t])) continue;
    lightest = std::min(lightest, unfiltered.scores.kept_mass[t] * std::exp(-residual));
    heaviest_above = std::max<double>(heaviest_above, unfiltered.scores.mass_above[t]);
  }
  RecordHypothesis hypothesis = unfiltered.hypothesis;
  hypothesis.top_p = lightest * (1 - kEdgeSlack);
  if (!(hypothesis.top_p > 0 && hypothesis.top_p < 1)) return best;
  TANDEM_RETURN_IF_ERROR(KeepBetter(search.Try(hypothesis, Part::kTopP), best));
  // Settings are round numbers, and the tokens that were sampled show the edge only roughly.
  hypothesis.top_p = std::round(hypothesis.top_p * 1e4) / 1e4;
  if (!best.fit.identical() && hypothesis.top_p > 0 && hypothesis.top_p < 1) {
    TANDEM_RETURN_IF_ERROR(KeepBetter(search.Try(hypothesis, Part::kTopP), best));
  }
  if (best.fit.exact() || !(heaviest_above > 0 && heaviest_above < 1)) return best;
  return Halve(search, kTopPFilter, {unfiltered.hypothesis, 1, heaviest_above}, std::move(best));
}

absl::StatusOr<Attempt> SearchTopK(HypothesisSearch& search, const Attempt& base) {
  TANDEM_ASSIGN_OR_RETURN(const Attempt unfiltered, search.Without(base, Part::kTopK));
  if (!LooksFiltered(search, unfiltered)) return base;
  int64_t largest_rank = 0;
  for (const int32_t rank : unfiltered.scores.ranks)
    largest_rank = std::max<int64_t>(largest_rank, rank);
  return LoosenAndHalve(search, kTopKFilter, unfiltered.hypothesis,
                        static_cast<double>(largest_rank) + 1, base);
}

absl::StatusOr<Attempt> SearchMinP(HypothesisSearch& search, const Attempt& base) {
  TANDEM_ASSIGN_OR_RETURN(const Attempt unfiltered, search.Without(base, Part::kMinP));
  if (!LooksFiltered(search, unfiltered)) return base;
  // The probability of every sampled token is at least min-p times that of the likeliest token.
  const double temperature =
      search.capture().manifest.sampling.temperature * unfiltered.hypothesis.temperature;
  double largest_gap = 0;
  for (const float gap : unfiltered.scores.gaps) {
    if (std::isfinite(gap)) largest_gap = std::max<double>(largest_gap, gap);
  }
  const double tight = std::min(0.999, std::exp(-largest_gap / temperature) * (1 + kEdgeSlack));
  return LoosenAndHalve(search, kMinPFilter, unfiltered.hypothesis, tight, base);
}

absl::StatusOr<Attempt> SearchTemperatureAndFilter(HypothesisSearch& search, const Attempt& base) {
  Attempt best = base;
  if (base.hypothesis.Has(Part::kTemperature) || !LooksFiltered(search, base)) return best;
  for (const Filter& filter : {kTopPFilter, kTopKFilter, kMinPFilter}) {
    TANDEM_RETURN_IF_ERROR(KeepBetter(SearchWithTemperature(search, base, filter), best));
    if (best.fit.exact()) break;
  }
  return best;
}

}  // namespace tandem::drift
