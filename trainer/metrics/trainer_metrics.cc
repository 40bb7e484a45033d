#include "trainer/metrics/trainer_metrics.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trainer/metrics/step_metrics.h"

namespace tandem::trainer {
namespace {

const std::vector<double> kSecondsBounds = {0.01, 0.05, 0.1, 0.25, 0.5, 1,   2.5, 5,
                                            10,   30,   60,  150,  300, 900, 3600};
const std::vector<double> kStalenessBounds = {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64};
constexpr const char* kEventKinds[] = {
    "run_started",       "run_finished",    "run_stopped",    "run_failed",   "resumed",
    "started_over",      "server_ready",    "server_lost",    "server_hung",  "server_back",
    "push_committed",    "push_failed",     "group_dropped",  "step_skipped", "checkpoint_saved",
    "checkpoint_failed", "capture_written", "capture_failed", "alert",        "eval",
    "eval_failed"};
constexpr const char* kDropReasons[] = {"stale", "zero_variance", "all_masked", "failed",
                                        "bad_response"};
constexpr const char* kPhases[] = {"step", "rollout",    "reward", "pack",  "proximal", "update",
                                   "push", "checkpoint", "eval",   "probe", "split",    "capture"};

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TrainerMetrics::TrainerMetrics(MetricsRegistry* registry, int64_t planned_steps,
                               int64_t completions_per_group)
    : registry_(registry),
      completions_per_group_(completions_per_group),
      step_(registry->GetGauge("tandem_trainer_step", "Train steps done: the weight version.")),
      last_step_time_(registry->GetGauge("tandem_trainer_last_step_timestamp_seconds",
                                         "When the last train step ended, in seconds since 1970.")),
      checkpoint_time_(
          registry->GetGauge("tandem_trainer_checkpoint_last_success_timestamp_seconds",
                             "When the last checkpoint was written, in seconds since 1970.")),
      in_flight_(registry->GetGauge("tandem_trainer_groups_in_flight",
                                    "Groups asked for and not finished.")),
      queue_depth_(registry->GetGauge("tandem_trainer_queue_depth",
                                      "Groups that are scored and wait to be trained on.")),
      servers_ready_(registry->GetGauge("tandem_trainer_servers", "Rollout servers by state.",
                                        {{"state", "ready"}})),
      servers_not_ready_(registry->GetGauge("tandem_trainer_servers", "Rollout servers by state.",
                                            {{"state", "not_ready"}})),
      servers_hung_(registry->GetGauge(
          "tandem_trainer_servers_hung",
          "Rollout servers, of those not ready, that answer while their engines do not move.")),
      wait_ratio_(registry->GetGauge(
          "tandem_trainer_rollout_wait_ratio",
          "Share of the last step's time spent waiting for rollouts: more servers would help.")),
      blocked_ratio_(registry->GetGauge("tandem_trainer_admission_blocked_ratio",
                                        "Share of the last step's time in which the staleness "
                                        "bound let no group be asked for and "
                                        "servers were idle: fewer servers would do.")),
      wait_seconds_(registry->GetCounter("tandem_trainer_wait_for_rollouts_seconds_total",
                                         "Time the loop waited for groups.")),
      blocked_seconds_(registry->GetCounter(
          "tandem_trainer_admission_blocked_seconds_total",
          "Time in which no group was asked for, the staleness bound allowing none.")),
      retries_(registry->GetCounter("tandem_trainer_group_retries_total",
                                    "Group calls made again after a failure.")),
      tokens_trained_(
          registry->GetCounter("tandem_trainer_trained_tokens_total", "Tokens trained on.")),
      tokens_sampled_(registry->GetCounter("tandem_trainer_sampled_tokens_total",
                                           "Completion tokens taken from servers.")),
      samples_(registry->GetCounter("tandem_trainer_samples_consumed_total",
                                    "Completions that train steps took.")),
      staleness_(registry->GetHistogram("tandem_trainer_staleness_versions",
                                        "Trained-at less sampled-at version, of each token.",
                                        kStalenessBounds)) {
  registry->GetGauge("tandem_trainer_planned_steps", "Train steps of the whole run.")
      ->Set(static_cast<double>(planned_steps));
  for (const char* kind : kEventKinds) {
    registry->GetCounter("tandem_trainer_events_total", "Events of the run by kind.",
                         {{"kind", kind}});
  }
  for (const char* reason : kDropReasons) AddDropped(reason, 0);
  for (const char* phase : kPhases) {
    phases_[phase] = registry->GetHistogram("tandem_trainer_step_duration_seconds",
                                            "Time of a train step and of its parts.",
                                            kSecondsBounds, {{"phase", phase}});
  }
}

void TrainerMetrics::OnQueues(const Queues& queues) {
  in_flight_->Set(static_cast<double>(queues.groups_in_flight));
  queue_depth_->Set(static_cast<double>(queues.groups_waiting));
  servers_ready_->Set(static_cast<double>(queues.servers_ready));
  servers_not_ready_->Set(static_cast<double>(queues.servers - queues.servers_ready));
  servers_hung_->Set(static_cast<double>(queues.servers_hung));
  blocked_seconds_->Add(std::max(0.0, queues.idle_seconds - blocked_seconds_->Value()));
  retries_->Add(std::max(0.0, static_cast<double>(queues.retries) - retries_->Value()));
}

void TrainerMetrics::OnWait(double seconds) { wait_seconds_->Add(seconds); }

void TrainerMetrics::OnEvent(std::string_view kind) {
  registry_
      ->GetCounter("tandem_trainer_events_total", "Events of the run by kind.",
                   {{"kind", std::string(kind)}})
      ->Add();
  if (kind == "checkpoint_saved") checkpoint_time_->Set(UnixSeconds());
}

void TrainerMetrics::OnAlert(const std::string& name) {
  registry_
      ->GetCounter("tandem_trainer_alerts_total",
                   "Alerts that the run raised about its own numbers.", {{"name", name}})
      ->Add();
}

void TrainerMetrics::AddDropped(const std::string& reason, int64_t completions) {
  registry_
      ->GetCounter("tandem_trainer_samples_dropped_total",
                   "Completions that were sampled and not trained on.", {{"reason", reason}})
      ->Add(static_cast<double>(completions));
}

void TrainerMetrics::OnTaken(const StepExperience& step, WeightVersion version) {
  for (const DroppedGroup& dropped : step.dropped)
    AddDropped(dropped.reason, completions_per_group_);
  for (const auto& [reason, count] : MaskedCompletions(step.groups)) AddDropped(reason, count);
  for (const auto& [age, tokens] : TokensByStaleness(step.groups, version)) {
    staleness_->ObserveMany(static_cast<double>(age), tokens);
  }
  samples_->Add(static_cast<double>(completions_per_group_) *
                static_cast<double>(step.groups.size()));
}

void TrainerMetrics::OnStep(const MetricsLine& line, int64_t num_trained, int64_t num_sampled) {
  tokens_trained_->Add(static_cast<double>(num_trained));
  tokens_sampled_->Add(static_cast<double>(num_sampled));
  for (const auto& [key, seconds] : line.scalars()) {
    if (!absl::StartsWith(key, "time/")) continue;
    if (const auto phase = phases_.find(key.substr(5)); phase != phases_.end()) {
      phase->second->Observe(seconds);
    }
  }
  for (const ShownNumber& shown : ShownNumbers()) {
    for (const auto& [key, value] : line.scalars()) {
      if (key != shown.key) continue;
      registry_->GetGauge(shown.name, HelpOf(shown))->Set(value * shown.scale);
    }
  }
  const double seconds = std::max(1e-9, line.Get("time/step"));
  wait_ratio_->Set(std::clamp(line.Get("time/rollout") / seconds, 0.0, 1.0));
  blocked_ratio_->Set(
      std::clamp((blocked_seconds_->Value() - blocked_at_step_) / seconds, 0.0, 1.0));
  blocked_at_step_ = blocked_seconds_->Value();
  last_step_time_->Set(UnixSeconds());
}

void TrainerMetrics::SetVersion(WeightVersion version) {
  step_->Set(static_cast<double>(version.value));
}

}  // namespace tandem::trainer
