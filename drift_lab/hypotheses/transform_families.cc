#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/statistics/least_squares.h"
#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {
namespace {

constexpr int kNewtonSteps = 8;
constexpr int kHalvings = 14;
// Steps of a temperature's logarithm below this change no fp32 log-prob.
constexpr double kLeastStep = 1e-7;
constexpr double kLeastTemperature = 0.2, kLargestTemperature = 5;
// A filter's edge as it was read off one token, moved out by what fp32 may have rounded.
constexpr double kEdgeSlack = 2e-6;

// Of a dial that makes the filter tighter as it grows: how much tighter is the record than the
// attempt? Positive: the attempt keeps too much. A token it removed says the opposite.
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

// A filter can only have raised what was recorded; other causes raise and lower it.
bool LooksFiltered(const HypothesisSearch& search, const Attempt& base) {
  constexpr double kLeastRaised = 0.2;
  return Slack(search, base) >
         kLeastRaised * base.fit.mean_abs * static_cast<double>(base.fit.num_tokens);
}

// Halves [loose, tight] of a dial until neither end moves; `set` puts a value into a hypothesis.
absl::StatusOr<Attempt> Halve(HypothesisSearch& search, const RecordHypothesis& open, Part part,
                              double loose, double tight,
                              const std::function<double(double, double)>& middle,
                              const std::function<void(double, RecordHypothesis&)>& set,
                              Attempt best) {
  for (int i = 0; i < kHalvings && !best.fit.exact(); ++i) {
    const double value = middle(loose, tight);
    if (value == loose || value == tight) break;
    RecordHypothesis hypothesis = open;
    set(value, hypothesis);
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, part));
    (Slack(search, attempt) > 0 ? loose : tight) = value;
    KeepBetter(std::move(attempt), best);
  }
  return best;
}

// A filter's dial, for searches that turn it together with the temperature.
struct Dial {
  Part part;
  FamilySearch alone;
  double nudge;  // factor of a small step towards tighter
  double (*get)(const RecordHypothesis&);
  void (*set)(double, RecordHypothesis&);
};

std::vector<double> SlopeInTemperature(const Attempt& attempt) {
  std::vector<double> slope(attempt.predicted.size());
  for (size_t t = 0; t < slope.size(); ++t) {
    slope[t] = double{attempt.scores.logprobs[t]} + attempt.scores.entropies[t];
  }
  return slope;
}

// How much of each of two directions is in a residual, each over what the other leaves.
std::pair<double, double> FitTwoSlopes(const std::vector<double>& a, const std::vector<double>& b,
                                       const std::vector<double>& residual) {
  constexpr int kRounds = 12;
  double of_a = 0, of_b = 0;
  const auto without = [&](const std::vector<double>& direction, double slope) {
    std::vector<double> rest = residual;
    for (size_t t = 0; t < rest.size(); ++t) rest[t] -= slope * direction[t];
    return rest;
  };
  for (int i = 0; i < kRounds; ++i) {
    of_a = FitSlope(a, without(b, of_b));
    of_b = FitSlope(b, without(a, of_a));
  }
  return {of_a, of_b};
}

// Turn by turn: a Gauss-Newton step of the temperature over what a nudge of the filter does not
// explain, and the filter anew at that temperature.
absl::StatusOr<Attempt> SearchWithTemperature(HypothesisSearch& search, const Attempt& base,
                                              const Dial& dial) {
  constexpr int kTurns = 4;
  constexpr double kLeastTurn = 1e-3;  // of log T: from there on each dial finds its exact value
  TANDEM_ASSIGN_OR_RETURN(Attempt at, dial.alone(search, base));
  if (!at.hypothesis.Has(dial.part) || at.fit.exact()) return at;
  Attempt best = at;
  for (int i = 0; i < kTurns && !best.fit.exact(); ++i) {
    RecordHypothesis next = at.hypothesis;
    dial.set(dial.get(next) * dial.nudge, next);
    TANDEM_ASSIGN_OR_RETURN(const Attempt nudged, search.Try(next, dial.part));
    const double sharper =
        FitTwoSlopes(SlopeInTemperature(at), Residuals(nudged.predicted, at.predicted),
                     Residuals(search.capture().behaviour_logprobs, at.predicted))
            .first;
    next = at.hypothesis;
    next.Clear(dial.part);
    next.temperature *= std::exp(-std::clamp(sharper, -0.5, 0.5));
    TANDEM_ASSIGN_OR_RETURN(at, search.Try(next, Part::kTemperature));
    TANDEM_ASSIGN_OR_RETURN(at, dial.alone(search, at));
    KeepBetter(at, best);
    if (!at.hypothesis.Has(dial.part) || std::abs(sharper) < kLeastTurn) break;
  }
  for (int i = 0; i < kTurns && !best.fit.exact(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(Attempt sharper, SearchTemperature(search, best));
    KeepBetter(std::move(sharper), best);
    TANDEM_ASSIGN_OR_RETURN(Attempt tighter, dial.alone(search, best));
    KeepBetter(std::move(tighter), best);
  }
  if (best.hypothesis.Has(dial.part)) best.part = dial.part;
  return best;
}

double Mean(double a, double b) { return (a + b) / 2; }
double GeometricMean(double a, double b) { return std::sqrt(a * b); }
double IntegerMean(double a, double b) { return std::floor((a + b) / 2); }

}  // namespace

absl::StatusOr<Attempt> SearchTemperature(HypothesisSearch& search, const Attempt& base) {
  Attempt best = base;
  for (int i = 0; i < kNewtonSteps; ++i) {
    const double step = FitSlope(SlopeInTemperature(best),
                                 Residuals(search.capture().behaviour_logprobs, best.predicted));
    RecordHypothesis hypothesis = best.hypothesis;
    hypothesis.temperature = std::clamp(hypothesis.temperature * std::exp(-step), kLeastTemperature,
                                        kLargestTemperature);
    if (!(std::abs(hypothesis.temperature - best.hypothesis.temperature) > kLeastStep)) break;
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kTemperature));
    if (attempt.fit.mean_abs >= best.fit.mean_abs) break;
    best = std::move(attempt);
  }
  // People set round numbers, and rounding moved the estimate by a few 1e-7.
  const double round = std::round(best.hypothesis.temperature * 1e5) / 1e5;
  if (best.part != Part::kTemperature || round == best.hypothesis.temperature) return best;
  RecordHypothesis hypothesis = best.hypothesis;
  hypothesis.temperature = round;
  TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kTemperature));
  KeepBetter(std::move(attempt), best);
  return best;
}

absl::StatusOr<Attempt> SearchTopP(HypothesisSearch& search, const Attempt& base) {
  RecordHypothesis open = base.hypothesis;
  Attempt unfiltered = base, best = base;
  if (open.top_p < 1) {
    open.top_p = 1;
    TANDEM_ASSIGN_OR_RETURN(unfiltered, search.Try(open, Part::kTopP));
  }
  if (!LooksFiltered(search, unfiltered)) return best;
  // No kept set is lighter than p, and none of the drawn tokens has p above it.
  double lightest = 1, heaviest_above = 0;
  for (size_t t = 0; t < unfiltered.predicted.size(); ++t) {
    const double residual =
        Residual(search.capture().behaviour_logprobs[t], unfiltered.predicted[t]);
    if (std::isnan(residual) || std::isinf(unfiltered.predicted[t])) continue;
    lightest = std::min(lightest, unfiltered.scores.kept_mass[t] * std::exp(-residual));
    heaviest_above = std::max<double>(heaviest_above, unfiltered.scores.mass_above[t]);
  }
  RecordHypothesis hypothesis = open;
  hypothesis.top_p = lightest * (1 - kEdgeSlack);
  if (!(hypothesis.top_p > 0 && hypothesis.top_p < 1)) return best;
  TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kTopP));
  KeepBetter(std::move(attempt), best);
  // Settings are round numbers, and the edge is only as sharp as the tokens that were drawn.
  hypothesis.top_p = std::round(hypothesis.top_p * 1e4) / 1e4;
  if (!best.fit.identical() && hypothesis.top_p > 0 && hypothesis.top_p < 1) {
    TANDEM_ASSIGN_OR_RETURN(Attempt round, search.Try(hypothesis, Part::kTopP));
    KeepBetter(std::move(round), best);
  }
  if (best.fit.exact() || !(heaviest_above > 0 && heaviest_above < 1)) return best;
  return Halve(
      search, open, Part::kTopP, 1, heaviest_above, Mean,
      [](double p, RecordHypothesis& h) { h.top_p = p; }, std::move(best));
}

absl::StatusOr<Attempt> SearchTopK(HypothesisSearch& search, const Attempt& base) {
  RecordHypothesis open = base.hypothesis;
  Attempt unfiltered = base, best = base;
  if (open.top_k > 0) {
    open.top_k = 0;
    TANDEM_ASSIGN_OR_RETURN(unfiltered, search.Try(open, Part::kTopK));
  }
  if (!LooksFiltered(search, unfiltered)) return best;
  int64_t largest_rank = 0;
  for (const int32_t rank : unfiltered.scores.ranks)
    largest_rank = std::max<int64_t>(largest_rank, rank);
  const auto set = [](double k, RecordHypothesis& h) { h.top_k = static_cast<int64_t>(k); };
  double tight = static_cast<double>(largest_rank) + 1, loose = tight;
  for (int i = 0; i < kHalvings; ++i) {
    RecordHypothesis hypothesis = open;
    set(loose, hypothesis);
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kTopK));
    const bool too_loose = Slack(search, attempt) > 0;
    KeepBetter(std::move(attempt), best);
    if (too_loose || best.fit.exact()) break;
    tight = std::exchange(loose, 2 * loose);
  }
  return Halve(search, open, Part::kTopK, loose, tight, IntegerMean, set, std::move(best));
}

absl::StatusOr<Attempt> SearchMinP(HypothesisSearch& search, const Attempt& base) {
  RecordHypothesis open = base.hypothesis;
  Attempt unfiltered = base, best = base;
  if (open.min_p > 0) {
    open.min_p = 0;
    TANDEM_ASSIGN_OR_RETURN(unfiltered, search.Try(open, Part::kMinP));
  }
  if (!LooksFiltered(search, unfiltered)) return best;
  // Every drawn token has at least that share of the likeliest one.
  const double temperature = search.claimed_temperature() * open.temperature;
  double largest_gap = 0;
  for (const float gap : unfiltered.scores.gaps) {
    if (std::isfinite(gap)) largest_gap = std::max<double>(largest_gap, gap);
  }
  const auto set = [](double m, RecordHypothesis& h) { h.min_p = m; };
  double tight = std::min(0.999, std::exp(-largest_gap / temperature) * (1 + kEdgeSlack)),
         loose = tight;
  for (int i = 0; i < kHalvings; ++i) {
    RecordHypothesis hypothesis = open;
    set(loose, hypothesis);
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kMinP));
    const bool too_loose = Slack(search, attempt) > 0;
    KeepBetter(std::move(attempt), best);
    if (too_loose || best.fit.exact()) break;
    tight = std::exchange(loose, loose / 2);
  }
  return Halve(search, open, Part::kMinP, loose, tight, GeometricMean, set, std::move(best));
}

absl::StatusOr<Attempt> SearchTemperatureAndFilter(HypothesisSearch& search, const Attempt& base) {
  static constexpr Dial kDials[] = {
      {Part::kTopP, SearchTopP, 0.98, [](const RecordHypothesis& h) { return h.top_p; },
       [](double x, RecordHypothesis& h) { h.top_p = std::clamp(x, 1e-3, 0.9999); }},
      {Part::kTopK, SearchTopK, 0.9,
       [](const RecordHypothesis& h) { return static_cast<double>(h.top_k); },
       [](double x, RecordHypothesis& h) { h.top_k = std::max<int64_t>(1, std::lround(x)); }},
      {Part::kMinP, SearchMinP, 1.1, [](const RecordHypothesis& h) { return h.min_p; },
       [](double x, RecordHypothesis& h) { h.min_p = std::clamp(x, 1e-9, 0.999); }}};
  Attempt best = base;
  if (base.hypothesis.Has(Part::kTemperature) || !LooksFiltered(search, base)) return best;
  for (const Dial& dial : kDials) {
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, SearchWithTemperature(search, base, dial));
    KeepBetter(std::move(attempt), best);
    if (best.fit.exact()) break;
  }
  return best;
}

}  // namespace tandem::drift
