#include "drift_lab/sensitivity/mixed_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Costs for each byte: b 1, a 2, d 3, c 10.
const std::vector<PlaceCost> kPlaces = {
    {"a", 0.2, 100}, {"b", 0.1, 100}, {"c", 1.0, 100}, {"d", 0.6, 200}};

double SumOf(const std::vector<size_t>& chosen) {
  double sum = 0;
  for (const size_t i : chosen) sum += kPlaces[i].k3;
  return sum;
}

TEST(ChooseMixedPlanTest, TakesWhatSavesMostForItsCostUntilTheBudgetIsSpent) {
  const auto plan =
      ChooseMixedPlan(kPlaces, 0.95, [](const auto& chosen) { return SumOf(chosen); });
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(plan->quantised, ElementsAre(1, 0, 3));  // 0.1 + 0.2 + 0.6; c would be 1.9
  EXPECT_NEAR(plan->measured_k3, 0.9, 1e-12);
  EXPECT_NEAR(plan->estimated_k3, 0.9, 1e-12);
  EXPECT_EQ(plan->saved_bytes, 400);
}

TEST(ChooseMixedPlanTest, TheMeasurementDecidesWhereTheSumIsWrong) {
  // Together they cost three times their sum: 0.3 for b, 0.9 for b and a.
  const auto dear = ChooseMixedPlan(kPlaces, 0.95, [](const auto& c) { return 3 * SumOf(c); });
  ASSERT_THAT(dear, IsOk());
  EXPECT_THAT(dear->quantised, ElementsAre(1, 0));
  EXPECT_NEAR(dear->measured_k3, 0.9, 1e-12);
  // Together they cost less than half: all of them fit, 0.76.
  const auto cheap = ChooseMixedPlan(kPlaces, 0.95, [](const auto& c) { return 0.4 * SumOf(c); });
  ASSERT_THAT(cheap, IsOk());
  EXPECT_THAT(cheap->quantised, ElementsAre(1, 0, 3, 2));
}

TEST(ChooseMixedPlanTest, QuantisesNothingWithoutABudgetAndEverythingThatIsFree) {
  const auto none = ChooseMixedPlan(kPlaces, 0, [](const auto& chosen) { return SumOf(chosen); });
  ASSERT_THAT(none, IsOk());
  EXPECT_THAT(none->quantised, IsEmpty());
  EXPECT_EQ(none->measured_k3, 0);
  const auto all = ChooseMixedPlan(kPlaces, 0, [](const auto&) { return 0.0; });
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ(all->quantised.size(), kPlaces.size());
}

TEST(ChooseMixedPlanTest, MeasuresAFewTimesOnly) {
  std::vector<PlaceCost> many;
  for (int i = 0; i < 121; ++i) many.push_back({std::to_string(i), 1e-3 * (i + 1), 100});
  const auto plan = ChooseMixedPlan(many, 2.0, [&](const auto& chosen) {
    double sum = 0;
    for (const size_t i : chosen) sum += 1.3 * many[i].k3;
    return sum;
  });
  ASSERT_THAT(plan, IsOk());
  EXPECT_LE(plan->measured_k3, 2.0);
  EXPECT_EQ(plan->quantised.size(), 54u);  // 1.3e-3 * 54 * 55 / 2 = 1.93, with 55: 2.002
  EXPECT_LE(plan->num_measurements, 8);
}

TEST(ChooseMixedPlanTest, AnErrorOfAMeasurementIsItsOwn) {
  const auto plan = ChooseMixedPlan(kPlaces, 1, [](const auto&) -> absl::StatusOr<double> {
    return absl::InternalError("the engine failed");
  });
  EXPECT_EQ(plan.status().message(), "the engine failed");
}

}  // namespace
}  // namespace tandem::drift
