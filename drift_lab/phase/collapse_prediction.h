// CollapsePrediction: how early and how reliably each predictor announces a collapse. A run
// collapses at the first step at which its exact score is below half of its highest so far.
//
//   AUC at a lead of L steps: the probability that a collapsing run, L steps before its collapse,
//   has a larger value than a healthy run of the same population at the same step (ties count
//   half).
//
//   Alarm: a threshold is chosen on the odd seeds so that 5 % of their healthy runs ever exceed it,
//   and judged on the runs of the even seeds, and the other way round. Counted are false alarms
//   among healthy runs, collapses that were announced, and the steps between alarm and collapse.
//
// Intervals resample whole seeds, with fixed thresholds.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "drift_lab/phase/predictors.h"
#include "drift_lab/phase/seed_intervals.h"
#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {

inline constexpr std::array kLeads = {10, 20, 40, 80};  // steps
inline constexpr double kWantedFalseAlarms = 0.05;

struct WatchedRun {
  int seed = 1;
  const RunResult* run = nullptr;  // must outlive the study
};

struct PredictorQuality {
  Predictor predictor;
  std::array<SeedInterval, kLeads.size()> auc;  // NaN if no collapse is late enough
  SeedInterval false_alarms;
  SeedInterval announced;
  double lead_low = 0, lead_median = 0, lead_high = 0;  // quartiles over announced collapses
};

struct CollapsePrediction {
  int num_healthy = 0;
  int num_collapsed = 0;
  std::array<int, kLeads.size()> num_late_enough{};  // collapses at that step or later
  std::vector<PredictorQuality> predictors;
};

CollapsePrediction StudyPrediction(std::span<const WatchedRun> runs);

}  // namespace tandem::drift
