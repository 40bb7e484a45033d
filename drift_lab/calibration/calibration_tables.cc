#include "drift_lab/calibration/calibration_tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

constexpr double kLevel = 0.95;
constexpr double kFoundShare = 0.95;
// The relative rounding error of fp32 in a strength that a replay identified; bounds are widened by
// it.
constexpr double kIdentifiedSlack = 1e-3;
constexpr char kNothing[] = "(none)";

// The injectable cause with the largest share (the first of several with the same).
const NamedInTrial* TopOf(const TrialResult& result) {
  const auto found = std::ranges::find_if(result.named, IsInjectable, &NamedInTrial::cause);
  return found == result.named.end() ? nullptr : &*found;
}

const NamedInTrial* Find(const TrialResult& result, std::string_view cause) {
  const auto found = std::ranges::find(result.named, cause, &NamedInTrial::cause);
  return found == result.named.end() ? nullptr : &*found;
}

bool Holds(const Interval& interval, double value) {
  return interval.low <= value && value <= interval.high;
}

struct Line {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;

  void Add(double at, double value) {
    n += 1;
    x += at;
    y += value;
    xx += at * at;
    xy += at * value;
  }
  double slope() const { return (n * xy - x * y) / (n * xx - x * x); }
  double intercept() const { return (y - slope() * x) / n; }
};

// Counts the captures of one strength whose interval of the drift contains its mean over all of
// them.
void CountAmounts(const std::vector<const TrialResult*>& captures, InjectorRow& row) {
  double mean_abs = 0, k3 = 0;
  for (const TrialResult* capture : captures) {
    mean_abs += capture->mean_abs.value / static_cast<double>(captures.size());
    k3 += capture->k3.value / static_cast<double>(captures.size());
  }
  for (const TrialResult* capture : captures) {
    row.mean_abs_covered.Add(Holds(capture->mean_abs, mean_abs));
    row.k3_covered.Add(Holds(capture->k3, k3));
  }
}

void AddTrial(const Injector& injector, double strength, const TrialResult& result, Line& line,
              InjectorRow& row) {
  const NamedInTrial* const named = Find(result, PartName(injector.part));
  row.named.Add(named != nullptr);
  row.found[strength].Add(named != nullptr);
  row.tokens += static_cast<double>(result.num_tokens);
  const Interval estimate =
      named != nullptr ? StrengthOf(injector, named->strength) : Interval{.value = 0};
  line.Add(strength, estimate.value);
  if (named == nullptr) return;
  row.largest_error = std::max(row.largest_error, std::abs(estimate.value - strength) / strength);
  if (injector.kind == ParameterKind::kEstimated) {
    row.covered.Add(Holds(estimate, strength));
  } else if (injector.kind == ParameterKind::kIdentified && estimate.known()) {
    const double slack = kIdentifiedSlack * strength;
    row.covered.Add(estimate.low - slack <= strength && strength <= estimate.high + slack);
  }
}

InjectorRow RowOf(const Injector& injector, const Trials& trials) {
  InjectorRow row{.name = std::string(injector.name),
                  .parameter = std::string(injector.parameter),
                  .kind = injector.kind};
  std::map<double, std::vector<const TrialResult*>> by_strength;
  Line line;
  int64_t num_healthy = 0;
  const size_t per_strength =
      static_cast<size_t>(std::ranges::count_if(trials, [&](const auto& trial) {
        return trial.first.fault == injector.name && trial.first.strength == 1;
      }));
  for (const auto& [trial, result] : trials) {
    if (trial.fault == "none" && static_cast<size_t>(num_healthy) < per_strength) {
      ++num_healthy;
      const NamedInTrial* const named = Find(result, PartName(injector.part));
      line.Add(0, named != nullptr ? StrengthOf(injector, named->strength).value : 0);
    }
    if (trial.fault != injector.name) continue;
    by_strength[trial.strength].push_back(&result);
    AddTrial(injector, trial.strength, result, line, row);
    if (trial.strength != 1) continue;
    const NamedInTrial* const top = TopOf(result);
    row.top.Add(top != nullptr && top->cause == PartName(injector.part));
  }
  if (row.named.trials > 0) row.tokens /= static_cast<double>(row.named.trials);
  row.slope = line.slope();
  row.intercept = line.intercept();
  row.smallest_found = std::numeric_limits<double>::infinity();
  for (auto found = row.found.rbegin(); found != row.found.rend(); ++found) {
    if (found->second.share() < kFoundShare) break;
    row.smallest_found = found->first;
  }
  for (const auto& [strength, captures] : by_strength) CountAmounts(captures, row);
  return row;
}

PairRow PairOf(const InjectorPair& pair, const Trials& trials) {
  PairRow row{std::string(pair.first), std::string(pair.second), {}, {}};
  const std::string_view first = PartName(InjectorNamed(pair.first)->part);
  const std::string_view second = PartName(InjectorNamed(pair.second)->part);
  for (const auto& [trial, result] : trials) {
    if (trial.fault != absl::StrCat(pair.first, "+", pair.second)) continue;
    const NamedInTrial* const top = TopOf(result);
    row.top.Add(top != nullptr && (top->cause == first || top->cause == second));
    row.both.Add(Find(result, first) != nullptr && Find(result, second) != nullptr);
  }
  return row;
}

UnmodelledRow UnmodelledOf(const UnmodelledFault& fault, const Trials& trials) {
  UnmodelledRow row{std::string(fault.name), std::string(fault.what), {}, 0};
  for (const auto& [trial, result] : trials) {
    if (trial.fault != fault.name) continue;
    row.abstained.Add(TopOf(result) == nullptr && (result.open || result.unexplained > 0.5));
    row.mean_abs += result.mean_abs.value;
  }
  if (row.abstained.trials > 0) row.mean_abs /= static_cast<double>(row.abstained.trials);
  return row;
}

}  // namespace

offpolicy::ShareInterval Count::interval() const {
  return offpolicy::BinomialInterval(successes, trials, kLevel);
}

CalibrationTables MakeTables(const Trials& trials) {
  CalibrationTables tables;
  std::set<std::string> causes;
  for (const Injector& injector : AllInjectors())
    causes.insert(std::string(PartName(injector.part)));
  for (const auto& [trial, result] : trials) {
    tables.seconds += result.seconds;
    if (trial.fault == "none") {
      tables.healthy.Add(TopOf(result) == nullptr);
      for (const std::string& cause : causes)
        tables.false_names[cause].Add(Find(result, cause) != nullptr);
    }
    if (trial.strength == 1 && InjectorNamed(trial.fault) != nullptr) {
      const NamedInTrial* const top = TopOf(result);
      ++tables.confusion[trial.fault][top != nullptr ? top->cause : kNothing];
    }
  }
  const auto made = [&](const std::string& fault) {
    return std::ranges::any_of(trials,
                               [&](const auto& trial) { return trial.first.fault == fault; });
  };
  for (const Injector& injector : AllInjectors()) {
    if (made(injector.name)) tables.injectors.push_back(RowOf(injector, trials));
  }
  for (const InjectorPair& pair : AllPairs()) {
    if (made(absl::StrCat(pair.first, "+", pair.second)))
      tables.pairs.push_back(PairOf(pair, trials));
  }
  for (const UnmodelledFault& fault : AllUnmodelled()) {
    if (made(fault.name)) tables.unmodelled.push_back(UnmodelledOf(fault, trials));
  }
  return tables;
}

}  // namespace tandem::drift
