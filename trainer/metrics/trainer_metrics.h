// TrainerMetrics: the numbers a trainer shows on /metrics (docs/metrics.md): counters of what the
// run does, histograms of steps and staleness, and the last step's numbers of metrics.jsonl that
// dashboards and alerts read. Used by trainer.cc from its thread.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "common/base/weight_version.h"
#include "common/observe/metrics.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/metrics/metrics_line.h"

namespace tandem::trainer {

struct RewardNumbers;

// A key of metrics.jsonl as a gauge: NAME of the last step that has KEY, times `scale`. Below `low`
// and above `high` it is worth a look. They are the one place of these thresholds: the alert rules
// under deploy/ and the pages that state them are held to it by a test.
struct ShownNumber {
  std::string_view key, name, help;
  double scale = 1;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};
std::span<const ShownNumber> ShownNumbers();

// The gauge's help on /metrics: `help`, and the bounds where there are some.
std::string HelpOf(const ShownNumber& shown);

class TrainerMetrics {
 public:
  // The state of the loop, read between two groups.
  struct Queues {
    int64_t groups_in_flight = 0;   // asked for and not finished
    int64_t groups_waiting = 0;     // finished and not trained on yet
    int64_t groups_unrewarded = 0;  // finished, and their rewards are asked for
    int64_t servers = 0, servers_ready = 0;
    int64_t servers_hung = 0;  // of those not ready
    double idle_seconds = 0;   // in all, with no group asked for
    int64_t retries = 0;       // of group calls
  };

  // `registry` must outlive it.
  TrainerMetrics(MetricsRegistry* registry, int64_t planned_steps);

  void OnQueues(const Queues& queues);
  void OnWait(double seconds) { wait_seconds_->Add(seconds); }  // for rollouts
  void OnEvent(std::string_view kind);
  void OnAlert(const std::string& name);
  void OnRewards(const RewardNumbers& numbers);  // of external components
  // The experience that a train step took: dropped and masked completions, and the staleness of the
  // other tokens.
  void OnTaken(const StepExperience& step, WeightVersion version);
  // A whole step. `num_trained`: tokens.
  void OnStep(const MetricsLine& line, int64_t num_trained, int64_t num_sampled);
  void SetVersion(WeightVersion version) { step_->Set(static_cast<double>(version.value)); }

 private:
  void AddDropped(const std::string& reason, int64_t completions);

  MetricsRegistry* const registry_;
  Gauge* const step_ =
      registry_->GetGauge("tandem_trainer_step", "Train steps done: the weight version.");
  Gauge* const last_step_time_ =
      registry_->GetGauge("tandem_trainer_last_step_timestamp_seconds",
                          "When the last train step ended, in seconds since 1970.");
  Gauge* const checkpoint_time_ =
      registry_->GetGauge("tandem_trainer_checkpoint_last_success_timestamp_seconds",
                          "When the last checkpoint was written, in seconds since 1970.");
  Gauge* const in_flight_ =
      registry_->GetGauge("tandem_trainer_groups_in_flight", "Groups asked for and not finished.");
  Gauge* const queue_depth_ = registry_->GetGauge(
      "tandem_trainer_queue_depth", "Groups that are scored and wait to be trained on.");
  Gauge* const unrewarded_ = registry_->GetGauge(
      "tandem_trainer_groups_unrewarded", "Groups that are sampled and wait for their rewards.");
  Gauge* const servers_ready_ = registry_->GetGauge(
      "tandem_trainer_servers", "Rollout servers by state.", {{"state", "ready"}});
  Gauge* const servers_not_ready_ = registry_->GetGauge(
      "tandem_trainer_servers", "Rollout servers by state.", {{"state", "not_ready"}});
  Gauge* const servers_hung_ = registry_->GetGauge(
      "tandem_trainer_servers_hung",
      "Rollout servers, of those not ready, that answer while their engines do not move.");
  Gauge* const wait_ratio_ = registry_->GetGauge(
      "tandem_trainer_rollout_wait_ratio",
      "Share of the last step's time spent waiting for rollouts: more servers would help.");
  Gauge* const blocked_ratio_ = registry_->GetGauge(
      "tandem_trainer_admission_blocked_ratio",
      "Share of the last step's time in which the staleness bound let no group be asked for and "
      "servers were idle: fewer servers would do.");
  Counter* const wait_seconds_ = registry_->GetCounter(
      "tandem_trainer_wait_for_rollouts_seconds_total", "Time the loop waited for groups.");
  Counter* const blocked_seconds_ = registry_->GetCounter(
      "tandem_trainer_admission_blocked_seconds_total",
      "Time in which no group was asked for, the staleness bound allowing none.");
  Counter* const retries_ = registry_->GetCounter("tandem_trainer_group_retries_total",
                                                  "Group calls made again after a failure.");
  Counter* const tokens_trained_ =
      registry_->GetCounter("tandem_trainer_trained_tokens_total", "Tokens trained on.");
  Counter* const tokens_sampled_ = registry_->GetCounter("tandem_trainer_sampled_tokens_total",
                                                         "Completion tokens taken from servers.");
  Counter* const samples_ = registry_->GetCounter("tandem_trainer_samples_consumed_total",
                                                  "Completions that train steps took.");
  Counter* const reward_cache_hits_ = registry_->GetCounter(
      "tandem_trainer_reward_cache_hits_total", "Answers of external rewards that the cache gave.");
  Counter* const judge_calls_ = registry_->GetCounter(
      "tandem_trainer_judge_calls_total", "Requests to the judge, repeated ones included.");
  Counter* const judge_tokens_ = registry_->GetCounter("tandem_trainer_judge_tokens_total",
                                                       "Tokens of the judge, prompts and replies.");
  HistogramMetric* const staleness_ = registry_->GetHistogram(
      "tandem_trainer_staleness_versions", "Trained-at less sampled-at version, of each token.",
      {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64});
  std::map<std::string, HistogramMetric*> phases_;
  double blocked_at_step_ = 0;  // blocked seconds when the last step ended
};

}  // namespace tandem::trainer
