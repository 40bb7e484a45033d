// CalibrationTables: what the trials say about the lab (drift.md section 5): false names, slope,
// coverage, the smallest strength that is found, confusion, abstention. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/statistics/distributions.h"
#include "drift_lab/calibration/injectors.h"
#include "drift_lab/calibration/trial.h"

namespace tandem::drift {

using Trials = std::map<PlannedTrial, TrialResult>;

// `successes` of `trials`, with the exact 95 % interval of the share.
struct Count {
  int64_t successes = 0, trials = 0;

  void Add(bool success) {
    successes += success;
    ++trials;
  }
  double share() const {
    return trials == 0 ? 0 : static_cast<double>(successes) / static_cast<double>(trials);
  }
  offpolicy::ShareInterval interval() const;
};

struct InjectorRow {
  std::string name, dial;
  DialKind kind = DialKind::kSwitch;
  Count named;  // trials at any strength whose causes hold the right one
  Count top;    // at natural strength: the right one has the largest share of the injectable ones
  // Line through (injected, estimated), trials without a fault included; an unnamed cause counts as
  // 0.
  double slope = 0, intercept = 0;
  double largest_error =
      0;          // abs(estimated - injected) where it was named, relative to the injected
  Count covered;  // intervals of the dial that hold the injected strength, where it was named
  Count mean_abs_covered,
      k3_covered;  // intervals of the gap that hold its mean over all captures of that strength
  std::map<double, Count> found;  // by strength
  double smallest_found = 0;      // named in at least 95 % of the captures; infinite: none
  double tokens = 0;              // of a capture, on average
};

struct PairRow {
  std::string first, second;
  Count top, both;  // the top cause is one of the two; both are named
};

struct UnmodelledRow {
  std::string name, what;
  Count abstained;  // no injectable cause named, and an open question or an unexplained share over
                    // a half
  double mean_abs = 0;
};

struct CalibrationTables {
  Count nulls;  // trials without a fault in which nothing injectable was named
  std::map<std::string, Count> false_names;  // by cause, over the same trials
  std::vector<InjectorRow> injectors;
  std::map<std::string, std::map<std::string, int64_t>>
      confusion;  // injector at natural strength -> top cause
  std::vector<PairRow> pairs;
  std::vector<UnmodelledRow> unmodelled;
  double seconds = 0;  // of all trials together
};

CalibrationTables MakeTables(const Trials& trials);

}  // namespace tandem::drift
