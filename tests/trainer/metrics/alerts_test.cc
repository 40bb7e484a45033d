#include "trainer/metrics/alerts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> Names(const std::vector<std::pair<std::string, double>>& numbers,
                               const AlertOptions& options = {}, const LossKind& loss = {}) {
  MetricsLine line(1, 0);
  for (const auto& [name, value] : numbers) line.Add(name, value);
  std::vector<std::string> names;
  for (const Alert& alert : CheckAlerts(line, options, loss)) {
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

TEST(Alerts, TheBoundDecidesWhereThereIsAnInterval) {
  // The value alone is over 0.1; the interval is not, or is.
  EXPECT_THAT(Names({{"drift/mean_abs_delta", 0.12},
                     {"drift/mean_abs_delta_low", 0.09},
                     {"drift/mean_abs_delta_high", 0.15},
                     {"staleness/max", 0}}),
              IsEmpty());
  EXPECT_THAT(Names({{"drift/mean_abs_delta", 0.12},
                     {"drift/mean_abs_delta_low", 0.11},
                     {"drift/mean_abs_delta_high", 0.15},
                     {"staleness/max", 0}}),
              ElementsAre("drift_guard"));
  EXPECT_TRUE(IsAbove({.value = 0, .low = 2, .high = 3}, 1));
  EXPECT_FALSE(IsAbove({.value = 5, .low = 0.5, .high = 9}, 1));
  EXPECT_TRUE(IsBelow({.value = 0.5, .low = 0.1, .high = 0.9}, 1));
  EXPECT_FALSE(IsBelow({.value = 0.5, .low = 0.1, .high = 1.1}, 1));
  EXPECT_FALSE(IsAbove({.value = std::nan("")}, 1) || IsBelow({.value = std::nan("")}, 1));
}

TEST(Alerts, AMessageStatesValueIntervalAndThreshold) {
  EXPECT_EQ(Describe({"drift_guard", {.value = 0.2, .low = 0.15, .high = 0.25}, 0.1, "d"}),
            "drift_guard is 0.2 [0.15, 0.25], threshold 0.1");
  EXPECT_EQ(Describe({"reward_std_near_zero", {.value = 0}, 0.001, "d"}),
            "reward_std_near_zero is 0, threshold 0.001");
}

using Numbers = std::vector<std::pair<std::string, double>>;

Numbers Delivery(double low, double floor, double behind) {
  return {{"drift/probe/version", 20},
          {"drift/probe/lag", 0},
          {"drift/delivery/square", 0.5},
          {"drift/delivery/floor", floor},
          {"drift/delivery/undelivered", 0.4},
          {"drift/delivery/undelivered_low", low},
          {"drift/delivery/undelivered_high", 0.6},
          {"drift/delivery/behind", behind},
          {"drift/delivery/nearest_square", behind == 0 ? 0.5 : 0.01}};
}

TEST(Alerts, WhatGrowsWithTheDistanceIsNonDeliveryWhenItIsOverTheNoise) {
  EXPECT_THAT(Names(Delivery(0.3, 0.01, 0)), ElementsAre("non_delivery"));
  EXPECT_THAT(Names(Delivery(0.03, 0.01, 0)), IsEmpty()) << "4 x 0.01";
  EXPECT_THAT(Names(Delivery(-0.1, 0, 0)), IsEmpty());
  EXPECT_THAT(Names(Delivery(0.3, 0.01, 0), {.delivery_factor = 0}), IsEmpty());
  EXPECT_THAT(Names({{"drift/delivery/undelivered", 0.4}, {"drift/delivery/floor", 0.01}}),
              IsEmpty())
      << "no interval, no alarm";
}

TEST(Alerts, AnEarlierVersionThatFitsBetterIsLateAndTheFirstOneIsNonDelivery) {
  EXPECT_THAT(Names(Delivery(0.3, 0.01, 2)), ElementsAre("late_delivery"));
  EXPECT_THAT(Names(Delivery(0.3, 0.01, 20)), ElementsAre("non_delivery"));
}

TEST(Alerts, ProbeAndVisitationHaveAlertsOfTheirOwn) {
  EXPECT_THAT(Names({{"drift/probe/mean_abs_delta", 0.2}, {"drift/probe/lag", 0}}),
              ElementsAre("probe_drift"));
  EXPECT_THAT(Names({{"drift/probe/mean_abs_delta", 0.2}, {"drift/probe/lag", 2}}), IsEmpty())
      << "staleness";
  EXPECT_THAT(Names({{"drift/visitation/mean_abs_delta", 0.2}, {"staleness/max", 0}}),
              ElementsAre("visitation_shift"));
  EXPECT_THAT(Names({{"drift/visitation/mean_abs_delta", 0.2},
                     {"drift/visitation/mean_abs_delta_low", 0.05},
                     {"drift/visitation/mean_abs_delta_high", 0.35},
                     {"staleness/max", 0}}),
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
  EXPECT_THAT(Names({{"reward/part/environment/out_of_tokens", 0.5}}),
              ElementsAre("environment_out_of_tokens"));
  EXPECT_THAT(Names({{"reward/part/environment/out_of_tokens", 0.25}}), ElementsAre());
}

TEST(Alerts, AClipThatNeverActsIsAlarmingOnlyWhereRatiosShouldLeaveABandAroundOne) {
  const std::vector<std::pair<std::string, double>> unclipped = {
      {"loss/num_updates", 4}, {"loss/clip_low_share", 0}, {"loss/clip_high_share", 0}};
  using offpolicy::ObjectiveKind;
  for (const ObjectiveKind kind : {ObjectiveKind::kClip, ObjectiveKind::kGspo}) {
    EXPECT_THAT(Names(unclipped, {}, {.objective = kind}), ElementsAre("clip_never_acts"));
  }
  for (const ObjectiveKind kind :
       {ObjectiveKind::kSapo, ObjectiveKind::kVespo, ObjectiveKind::kCispo, ObjectiveKind::kTopr,
        ObjectiveKind::kM2po, ObjectiveKind::kDppoTv, ObjectiveKind::kDppoKl}) {
    EXPECT_THAT(Names(unclipped, {}, {.objective = kind}), IsEmpty());
  }
}

TEST(Alerts, ARatioFarFromOneInBypassIsTheGapOfTheEnginesAndNotDropout) {
  MetricsLine line(1, 0);
  line.Add("loss/num_updates", 1);
  line.Add("loss/ratio_mean", 0.8);
  const auto decoupled = CheckAlerts(line, {});
  ASSERT_EQ(decoupled.size(), 1u);
  EXPECT_THAT(decoupled[0].diagnosis, HasSubstr("dropout"));
  const auto bypass = CheckAlerts(line, {}, {.bypass = true});
  ASSERT_EQ(bypass.size(), 1u);
  EXPECT_EQ(bypass[0].name, "ratio_far_from_one");
  EXPECT_THAT(bypass[0].diagnosis, Not(HasSubstr("dropout")));
  EXPECT_THAT(bypass[0].diagnosis, HasSubstr("target / behaviour"));
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
  const auto alerts = CheckAlerts(line, {.kl_budget = 0.1, .on_kl = OnKl::kStop});
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_TRUE(alerts[0].stops_run);
  EXPECT_FALSE(alerts[1].stops_run);
}

}  // namespace
}  // namespace tandem::trainer
