#include "trainer/metrics/trainer_metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/rewards/external/reward_tally.h"

namespace tandem::trainer {
namespace {

const std::vector<double> kSecondsBounds = {0.01, 0.05, 0.1, 0.25, 0.5, 1,   2.5, 5,
                                            10,   30,   60,  150,  300, 900, 3600};
constexpr const char* kEventKinds[] = {"run_started",
                                       "run_finished",
                                       "run_stopped",
                                       "run_failed",
                                       "resumed",
                                       "started_over",
                                       "server_ready",
                                       "server_lost",
                                       "server_hung",
                                       "server_back",
                                       "push_committed",
                                       "push_failed",
                                       "group_dropped",
                                       "step_skipped",
                                       "checkpoint_saved",
                                       "checkpoint_failed",
                                       "capture_written",
                                       "capture_failed",
                                       "alert",
                                       "eval",
                                       "eval_failed",
                                       "reward_breaker_opened",
                                       "reward_budget_spent"};
constexpr const char* kDropReasons[] = {"stale",  "zero_variance", "all_masked",
                                        "failed", "bad_response",  "not_needed"};
constexpr const char* kPhases[] = {"step", "rollout",    "reward", "pack",  "proximal", "update",
                                   "push", "checkpoint", "eval",   "probe", "split",    "capture"};

}  // namespace

TrainerMetrics::TrainerMetrics(MetricsRegistry* registry, int64_t planned_steps)
    : registry_(registry) {
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
  unrewarded_->Set(static_cast<double>(queues.groups_unrewarded));
  servers_ready_->Set(static_cast<double>(queues.servers_ready));
  servers_not_ready_->Set(static_cast<double>(queues.servers - queues.servers_ready));
  servers_hung_->Set(static_cast<double>(queues.servers_hung));
  blocked_seconds_->Add(std::max(0.0, queues.idle_seconds - blocked_seconds_->Value()));
  retries_->Add(std::max(0.0, static_cast<double>(queues.retries) - retries_->Value()));
}

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

void TrainerMetrics::OnRewards(const RewardNumbers& numbers) {
  reward_cache_hits_->Add(static_cast<double>(numbers.cache_hits));
  judge_calls_->Add(static_cast<double>(numbers.judge_calls));
  judge_tokens_->Add(static_cast<double>(numbers.judge_tokens));
}

void TrainerMetrics::AddDropped(const std::string& reason, int64_t completions) {
  registry_
      ->GetCounter("tandem_trainer_samples_dropped_total",
                   "Completions that were sampled and not trained on.", {{"reason", reason}})
      ->Add(static_cast<double>(completions));
}

void TrainerMetrics::OnTaken(const StepExperience& step, WeightVersion version) {
  for (const DroppedGroup& dropped : step.dropped) AddDropped(dropped.reason, dropped.num_asked);
  for (const auto& [reason, count] : MaskedCompletions(step.groups)) AddDropped(reason, count);
  for (const auto& [age, tokens] : TokensByStaleness(step.groups, version)) {
    staleness_->ObserveMany(static_cast<double>(age), tokens);
  }
  for (const auto& group : step.groups) samples_->Add(group.completions_size());
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

}  // namespace tandem::trainer
