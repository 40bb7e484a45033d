// CalibrationReport: the tables of a calibration, as the published page and as JSON. Pure.
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

// The page in Markdown. Numbers that miss their target are marked.
std::string ToMarkdown(const CalibrationReport& report);

// Every number of the page's tables.
std::string ToJson(const CalibrationReport& report);

}  // namespace tandem::drift
