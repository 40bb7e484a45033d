// Alerts: named conditions of a train step that mean trouble, each with the seeds of a diagnosis.
// Pure. Used by trainer.cc, which logs them, writes them as events and may stop the run.
#ifndef TANDEM_TRAINER_ALERTS_H_
#define TANDEM_TRAINER_ALERTS_H_

#include <string>
#include <vector>

#include "common/base/options.h"
#include "trainer/metrics_line.h"

namespace tandem::trainer {

struct AlertOptions {
  double drift_guard = 0.1;  // 0: off
  double ratio_guard = 0.05;
  double clip_share_max = 0.3;
  double kl_budget = 0;  // 0: off
  bool stop_on_kl = false;
  double reward_std_min = 1e-3;
  double entropy_min = 0.02;
  double changed_share_min = 1e-4;
  double arrived_share_min = 0.5;
};
void BindOptions(OptionBinder& binder, AlertOptions& options);

struct Alert {
  std::string name;
  double value = 0;
  double threshold = 0;
  std::string diagnosis;
  bool stops_run = false;
};

// Looks at a step's numbers by their names in metrics.jsonl; a number that is not there raises
// nothing.
std::vector<Alert> CheckAlerts(const MetricsLine& line, const AlertOptions& options);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_ALERTS_H_
