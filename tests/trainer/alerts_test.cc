#include "trainer/alerts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Names(const std::vector<std::pair<std::string, double>>& numbers,
                               const AlertOptions& options = {}) {
  MetricsLine line(1, 0);
  for (const auto& [name, value] : numbers) line.Add(name, value);
  std::vector<std::string> names;
  for (const Alert& alert : CheckAlerts(line, options)) {
    EXPECT_FALSE(alert.diagnosis.empty());
    names.push_back(alert.name);
  }
  return names;
}

TEST(Alerts, AHealthyStepAndAnEmptyOneRaiseNone) {
  EXPECT_THAT(Names({}), IsEmpty());
  EXPECT_THAT(Names({{"drift/mean_abs_delta", 0.01},
                     {"staleness/max", 0},
                     {"loss/num_updates", 1},
                     {"loss/ratio_mean", 1},
                     {"loss/clip_low_share", 0},
                     {"loss/clip_high_share", 0},
                     {"reward/std", 0.3},
                     {"loss/entropy", 0.8},
                     {"push/update_norm", 0.1},
                     {"push/changed_share", 0.03}}),
              IsEmpty());
}

TEST(Alerts, DriftGuardWatchesOnPolicyStepsOnly) {
  EXPECT_THAT(Names({{"drift/mean_abs_delta", 0.2}, {"staleness/max", 0}}),
              ElementsAre("drift_guard"));
  EXPECT_THAT(Names({{"drift/mean_abs_delta", 0.2}, {"staleness/max", 1}}), IsEmpty());
  EXPECT_THAT(Names({{"drift/mean_abs_delta", 0.2}, {"staleness/max", 0}}, {.drift_guard = 0}),
              IsEmpty());
}

TEST(Alerts, EachConditionHasItsName) {
  EXPECT_THAT(Names({{"loss/num_updates", 1}, {"loss/ratio_mean", 0.8}}),
              ElementsAre("ratio_far_from_one"));
  EXPECT_THAT(
      Names({{"loss/num_updates", 4}, {"loss/clip_low_share", 0}, {"loss/clip_high_share", 0}}),
      ElementsAre("clip_never_acts"));
  EXPECT_THAT(Names({{"loss/clip_low_share", 0.2}, {"loss/clip_high_share", 0.2}}),
              ElementsAre("clip_share_high"));
  EXPECT_THAT(Names({{"kl_reference/k3", 0.5}}, {.kl_budget = 0.1}), ElementsAre("kl_over_budget"));
  EXPECT_THAT(Names({{"reward/std", 0}}), ElementsAre("reward_std_near_zero"));
  EXPECT_THAT(Names({{"loss/entropy", 0.001}}), ElementsAre("entropy_collapse"));
}

TEST(Bug42TinyUpdates, APushThatChangedAlmostNoElementIsAnAlert) {
  EXPECT_THAT(Names({{"push/update_norm", 0.1}, {"push/changed_share", 0}}),
              ElementsAre("push_changed_nothing"));
  EXPECT_THAT(Names({{"push/update_norm", 0}, {"push/changed_share", 0}}), IsEmpty());
  EXPECT_THAT(Names({{"push/changed_share", 0.02}, {"push/arrived_share", 0.1}}),
              ElementsAre("push_swallows_update"));
}

TEST(Alerts, OnlyTheKlBudgetMayStopARun) {
  MetricsLine line(1, 0);
  line.Add("kl_reference/k3", 1);
  line.Add("reward/std", 0);
  const auto alerts = CheckAlerts(line, {.kl_budget = 0.1, .stop_on_kl = true});
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_TRUE(alerts[0].stops_run);
  EXPECT_FALSE(alerts[1].stops_run);
}

}  // namespace
}  // namespace tandem::trainer
