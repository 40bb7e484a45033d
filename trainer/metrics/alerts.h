// Alerts: named conditions of a train step that mean trouble, each with the seeds of a diagnosis.
// Pure. Used by trainer.cc, which logs them, writes them as events and may stop the run.
#pragma once

#include <string>
#include <vector>

#include "common/offpolicy/objective_options.h"
#include "common/options/options.h"
#include "common/statistics/cluster_bootstrap.h"
#include "trainer/metrics/metrics_line.h"

namespace tandem::trainer {

// What a run does that passed its KL budget.
enum class OnKl {
  kWarn,      // goes on
  kStop,      // ends with the weights it has
  kRollBack,  // ends with those of its best checkpoint (best_checkpoint.h)
};

struct AlertOptions {
  double drift_guard = 0.1;    // 0: off
  double delivery_factor = 4;  // 0: off
  double ratio_guard = 0.05;
  double clip_share_max = 0.3;
  double kl_budget = 0;  // 0: off
  OnKl on_kl = OnKl::kWarn;
  double reward_std_min = 1e-3;
  double entropy_min = 0.02;
  double changed_share_min = 1e-4;
  double arrived_share_min = 0.5;
};
void BindOptions(OptionBinder& binder, AlertOptions& options);

struct Alert {
  std::string name;
  offpolicy::Interval measured;  // bounds NaN for a number without an interval
  double threshold = 0;
  std::string diagnosis;
  bool stops_run = false;
  bool rolls_back = false;  // the run ends with the weights of its best checkpoint
};

// Whether the number has certainly passed the threshold: the near bound of its interval decides, so
// that noise raises no alert. Without an interval the value decides. False for NaN.
bool IsAbove(const offpolicy::Interval& measured, double threshold);
bool IsBelow(const offpolicy::Interval& measured, double threshold);

// The policies that the loss compares. The meaning of its ratio and of its clip depends on them.
struct LossKind {
  bool bypass = false;  // correction.mode: the ratio is target / behaviour, not target / proximal
  offpolicy::ObjectiveKind objective = offpolicy::ObjectiveKind::kClip;
};

// The alerts that a step's numbers raise. Numbers are found by their names in metrics.jsonl; one
// that is missing raises no alert.
std::vector<Alert> CheckAlerts(const MetricsLine& line, const AlertOptions& options,
                               const LossKind& loss = {});

// "drift_guard is 0.2 [0.15, 0.26], threshold 0.1"
std::string Describe(const Alert& alert);

}  // namespace tandem::trainer
