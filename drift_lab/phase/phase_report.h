// PhaseReport: the results of the studies, as Markdown for people and as JSON for figures.
#pragma once

#include <string>
#include <vector>

#include "drift_lab/phase/collapse_prediction.h"
#include "drift_lab/phase/phase_table.h"

namespace tandem::drift {

// A set of runs over which the predictors were judged.
struct Population {
  std::string title;
  CollapsePrediction prediction;
};

// Parts that were not asked for are empty, and left out of the output.
struct PhaseReport {
  std::string date;    // "2026-11-22"
  std::string commit;  // of the build
  int num_seeds = 0;
  int steps = 0;
  std::vector<PhaseEntry> table;
  std::vector<Population> populations;
  std::vector<KindEffect> kinds;
};

std::string ToMarkdown(const PhaseReport& report);
std::string ToJson(const PhaseReport& report);

}  // namespace tandem::drift
