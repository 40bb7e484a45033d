// CalibrationTables: what the trials say about the lab: falsely named causes, slope and coverage of
// strengths, the smallest strength that is found, confusion of causes, abstention
// (docs/methods.md); and the report that shows them. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/statistics/distributions.h"
#include "drift_lab/calibration/injectors.h"
#include "drift_lab/calibration/trial_store.h"

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
  std::string name, parameter;
  ParameterKind kind = ParameterKind::kSwitch;
  Count named;  // trials, at any strength, that name the right cause
  Count top;    // at natural strength: the right cause has the largest share of the injectable ones
  // The least-squares line through (injected, estimated), with trials without a fault. The estimate
  // is 0 if the cause is not named.
  double slope = 0, intercept = 0;
  double largest_error = 0;  // abs(estimated - injected) / injected, if the cause is named
  Count covered;             // intervals that contain the injected strength, if the cause is named
  // Intervals of the drift that contain its mean over all captures of the same strength.
  Count mean_abs_covered, k3_covered;
  std::map<double, Count> found;  // by strength: captures that name the right cause
  double smallest_found = 0;      // strength from which on 95 % do; infinite: none
  double tokens = 0;              // per capture, on average
};

struct PairRow {
  std::string first, second;
  Count top;   // the cause with the largest share is one of the two
  Count both;  // both are named
};

struct UnmodelledRow {
  std::string name, what;
  // No injectable cause is named, and there is an open question or more than half is unexplained.
  Count abstained;
  double mean_abs = 0;
};

struct CalibrationTables {
  Count healthy;                             // trials without a fault that name no injectable cause
  std::map<std::string, Count> false_names;  // by cause: trials without a fault that name it
  std::vector<InjectorRow> injectors;
  // Injector at natural strength -> cause with the largest share -> number of trials.
  std::map<std::string, std::map<std::string, int64_t>> confusion;
  std::vector<PairRow> pairs;
  std::vector<UnmodelledRow> unmodelled;
  double seconds = 0;  // of all trials together
};

CalibrationTables MakeTables(const Trials& trials);

struct CalibrationReport {
  std::string date, commit, command;
  TrialStudy study;
  CalibrationGrid grid;
  int64_t num_parameters = 0;
  CalibrationTables tables;
};

// The page in Markdown. Numbers that miss their target are marked.
std::string ToMarkdown(const CalibrationReport& report);

// Every number of the page's tables.
std::string ToJson(const CalibrationReport& report);

}  // namespace tandem::drift
