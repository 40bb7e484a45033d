// CalibrationPage: the tables as the published page. Pure.
#pragma once

#include <string>

#include "drift_lab/calibration/calibration_tables.h"
#include "drift_lab/calibration/trial_store.h"

namespace tandem::drift {

struct CalibrationReport {
  std::string date, commit, command;
  TrialStudy study;
  CalibrationGrid grid;
  int64_t num_parameters = 0;
  CalibrationTables tables;
};

// Markdown. What misses its target is marked as it is.
std::string ToMarkdown(const CalibrationReport& report);

// Of the tables alone: every number the page has.
std::string ToJson(const CalibrationReport& report);

}  // namespace tandem::drift
