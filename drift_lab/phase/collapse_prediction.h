// CollapsePrediction: how early and how reliably a metric announces a collapse. A run collapses at
// the first step at which its exact score is below half of its highest so far.
//
// A predictor is a metric that a dashboard could watch. Its value uses the run's trace up to its
// step and nothing later; a larger value is closer to an alarm.
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

#include "drift_lab/phase/seed_intervals.h"
#include "drift_lab/phase/toy/run.h"
#include "drift_lab/phase/toy/trace.h"

namespace tandem::drift {

enum class Predictor {
  kRewardFall,  // highest mean reward so far minus now; a useful drift metric is earlier than it
  kK3,
  kEssLoss,        // 1 - ESS
  kTail,           // p99.9 of abs(log w)
  kMeanWeight,     // abs(mean w - 1)
  kOutside,        // share of w outside [.5, 2]
  kDropped,        // share of tokens that the method drops
  kSignImbalance,  // kept share of advantage < 0 minus that of advantage > 0
  kGradientFall,   // log of (first rows' gradient norm / now)
  kGradientSpike,  // minus that
  kEntropyRise,    // log of (entropy now / in the first rows)
  kEntropyFall,    // minus that
  kMaxLogit,       // largest logit
};
inline constexpr int kNumPredictors = static_cast<int>(Predictor::kMaxLogit) + 1;
const char* PredictorName(Predictor predictor);

inline constexpr int kSmoothedRows = 2;  // a value is the mean of its row and the one before

// One value per row of the trace. "First rows" are the first kSmoothedRows; values relative to them
// are 0 there. Rows with NaN (no token of that sign) are left out of a mean; a mean of none is 0.
std::vector<double> PredictorValues(Predictor predictor, std::span<const TraceRow> trace);

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
