#include "trainer/metrics/trainer_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/metrics/trainer_health.h"
#include "trainer/rewards/external/reward_tally.h"

namespace tandem::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainerMetricsTest : public ::testing::Test {
 protected:
  std::string Page() const { return registry_.Render(); }

  MetricsRegistry registry_;
  TrainerMetrics metrics_{&registry_, /*planned_steps=*/100};
};

TEST_F(TrainerMetricsTest, AStepsNumbersAreShownUnderTheirNamesAndInBaseUnits) {
  MetricsLine line(3, 0);
  line.Add("reward/mean", 0.25);
  line.Add("push/pause_ms", 80);
  line.Add("time/step", 4);
  line.Add("time/rollout", 3);
  line.Add("drift/other", 9);
  metrics_.OnStep(line, 120, 150);
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_reward_mean 0.25\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_push_pause_seconds 0.08\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_rollout_wait_ratio 0.75\n"));
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_step_duration_seconds_sum{phase=\"rollout\"} 3\n"));
  EXPECT_THAT(
      Page(),
      HasSubstr("tandem_trainer_step_duration_seconds_bucket{phase=\"step\",le=\"5\"} 1\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_trained_tokens_total 120\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_sampled_tokens_total 150\n"));
  EXPECT_THAT(Page(), Not(HasSubstr("other"))) << "most keys stay in metrics.jsonl";
}

TEST_F(TrainerMetricsTest, WhatRewardsCostAddsUpOverSteps) {
  metrics_.OnRewards({.cache_hits = 1, .judge_calls = 2, .judge_tokens = 30});
  metrics_.OnRewards({.cache_hits = 4, .judge_calls = 5, .judge_tokens = 60});
  metrics_.OnQueues({.groups_unrewarded = 7});
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_reward_cache_hits_total 5\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_judge_calls_total 7\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_judge_tokens_total 90\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_groups_unrewarded 7\n"));
}

TEST_F(TrainerMetricsTest, TimeWithoutAQuestionAtTheServersIsTheShareOfTheStepThatTheBoundBlocked) {
  MetricsLine line(1, 0);
  line.Add("time/step", 4);
  metrics_.OnQueues({.groups_in_flight = 2,
                     .groups_waiting = 5,
                     .servers = 3,
                     .servers_ready = 2,
                     .servers_hung = 1,
                     .idle_seconds = 10,
                     .retries = 1});
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_servers_hung 1\n"));
  metrics_.OnStep(line, 0, 0);  // ten seconds before the first step: more than it lasted
  metrics_.OnQueues({.servers = 3, .servers_ready = 3, .idle_seconds = 11, .retries = 4});
  metrics_.OnStep(line, 0, 0);
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_admission_blocked_ratio 0.25\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_admission_blocked_seconds_total 11\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_group_retries_total 4\n"));
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_servers{state=\"ready\"} 3\n"));
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_servers{state=\"not_ready\"} 0\n"));
}

TEST_F(TrainerMetricsTest, WhatIsDroppedCountsInCompletionsByReason) {
  StepExperience step;
  step.dropped = {{.group_id = 1, .reason = "stale", .num_asked = 3},
                  {.group_id = 2, .reason = "stale", .num_asked = 5}};
  step.groups.resize(1);
  for (const int64_t version : {5, 4}) {
    auto* const member = step.groups[0].add_completions();
    auto* const span = member->mutable_completion()->add_version_spans();
    span->set_weight_version(version);
    span->set_num_tokens(10);
  }
  step.groups[0].mutable_completions(1)->set_masked(true);
  step.groups[0].mutable_completions(1)->set_drop_reason("reward_failed: gsm8k: no number");
  metrics_.OnTaken(step, {6});
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_samples_dropped_total{reason=\"stale\"} 8\n"));
  EXPECT_THAT(Page(),
              HasSubstr("tandem_trainer_samples_dropped_total{reason=\"reward_failed\"} 1\n"));
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_samples_dropped_total{reason=\"failed\"} 0\n"))
      << "there from the start, so that a rate has a first value";
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_staleness_versions_bucket{le=\"1\"} 10\n"));
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_staleness_versions_bucket{le=\"2\"} 20\n"));
}

TEST_F(TrainerMetricsTest, EventsAreCountedByKindAndACheckpointHasItsTime) {
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_events_total{kind=\"push_failed\"} 0\n"));
  EXPECT_THAT(Page(), HasSubstr("\ntandem_trainer_checkpoint_last_success_timestamp_seconds 0\n"));
  metrics_.OnEvent("push_failed");
  metrics_.OnEvent("checkpoint_saved");
  EXPECT_THAT(Page(), HasSubstr("tandem_trainer_events_total{kind=\"push_failed\"} 1\n"));
  EXPECT_THAT(Page(), ::testing::ContainsRegex(
                          "\ntandem_trainer_checkpoint_last_success_timestamp_seconds 1[0-9]{9}"));
}

TEST(TrainerHealthTest, IsReadyOnceStartedAndLiveWhileTheLoopMoves) {
  Health health;
  double now = 0;
  {
    TrainerHealth trainer(&health, 60, [&] { return now; });
    now = 1000;  // loading rests
    EXPECT_TRUE(health.Ask(Probe::kLive).yes);
    EXPECT_FALSE(health.Ask(Probe::kStarted).yes);
    EXPECT_EQ(health.Ask(Probe::kReady).why, "loading the model and meeting the other ranks");
    trainer.SetStarted("rank 1 follows rank 0");
    EXPECT_TRUE(health.Ask(Probe::kReady).yes);
    trainer.heartbeat()->Beat();
    now = 1059;
    EXPECT_TRUE(health.Ask(Probe::kLive).yes);
    now = 1061;
    EXPECT_EQ(health.Ask(Probe::kLive).why,
              "the loop did not move for 61.0 s (trainer.liveness_seconds: 60.0)");
    EXPECT_FALSE(health.Ask(Probe::kReady).yes);
    EXPECT_TRUE(health.Ask(Probe::kStarted).yes) << "once and for all";
  }
  EXPECT_EQ(health.Ask(Probe::kReady).why, "stopping");
}

}  // namespace
}  // namespace tandem::trainer
