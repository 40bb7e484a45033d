// CollapsePrediction: how early and how reliably each predictor sees a collapse. A run collapses
// when its exact score falls under half of its highest so far; the step of that is the collapse.
//
//   AUC at a lead of L steps: the chance that a collapsing run, L steps before its collapse, has a
//   larger value than a healthy run of the same population at the same step (ties count half).
//
//   Alarm: a threshold is chosen on the seeds of one half (odd, even) so that 5 % of its healthy
//   runs ever pass it, and judged on the runs of the other half, both ways: false alarms among
//   healthy runs, collapses announced before they came, steps between alarm and collapse.
//
// Intervals resample whole seeds, thresholds held fixed.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "drift_lab/phase/seed_intervals.h"
#include "drift_lab/phase/predictors.h"
#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {

inline constexpr std::array kLeads = {10, 20, 40, 80};  // steps
inline constexpr double kWantedFalseAlarms = 0.05;

struct WatchedRun {
  int seed = 1;
  const RunResult* run = nullptr;  // outlives the study
};

struct PredictorQuality {
  Predictor predictor;
  std::array<Interval, kLeads.size()> auc;  // NaN where no collapse is late enough
  Interval false_alarms;
  Interval announced;
  double lead_low = 0, lead_median = 0, lead_high = 0;  // quartiles over announced collapses, steps
};

struct CollapsePrediction {
  int num_healthy = 0;
  int num_collapsed = 0;
  std::array<int, kLeads.size()> num_late_enough{};  // collapses with at least that lead
  std::vector<PredictorQuality> predictors;
};

CollapsePrediction StudyPrediction(std::span<const WatchedRun> runs);

}  // namespace tandem::drift
