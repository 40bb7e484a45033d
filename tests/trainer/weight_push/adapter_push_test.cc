#include "trainer/weight_push/adapter_push.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr auto kLost = absl::StatusCode::kDataLoss;

// Two layers of a model of 100 elements: ||s B A|| is 3 and 4.
const AdapterPush kPush = {.rank = 2, .modules = {{"q", 9}, {"up", 16}}, .num_elements = 100};

AppliedModule Applied(const char* weight, double squared_change) {
  return {weight, {squared_change, 0.9 * squared_change, 0.25 * squared_change, 10}};
}

TEST(CheckAppliedTest, AcceptsWhatTheServerAppliedToEveryLayer) {
  EXPECT_THAT(CheckApplied(kPush, {Applied("up", 16.1), Applied("q", 9)}), IsOk());
}

// The classic fault: the adapter arrived and nobody applies it.
TEST(CheckAppliedTest, NamesTheLayerThatWasNotBoundOrNotChanged) {
  EXPECT_THAT(CheckApplied(kPush, {Applied("q", 9)}), FailsWith(kLost, "up was not bound"));
  EXPECT_THAT(CheckApplied(kPush, {}), FailsWith(kLost, "did not take effect in 2: q was not"));
  EXPECT_THAT(CheckApplied(kPush, {Applied("q", 0), Applied("up", 16)}),
              FailsWith(kLost, "q was changed by 0 and not by 3"));
  // Twice the scaling.
  EXPECT_THAT(CheckApplied(kPush, {Applied("q", 36), Applied("up", 64)}),
              FailsWith(kLost, "in 2: q was changed by 6 and not by 3"));
  EXPECT_THAT(CheckApplied(kPush, {Applied("q", 9), Applied("up", 16), Applied("k", 1)}),
              FailsWith(kLost, "k was changed, and has no adapter"));
}

TEST(CheckAppliedTest, FreshAdaptersChangeNothing) {
  AdapterPush fresh = kPush;
  for (auto& module : fresh.modules) module.squared_change = 0;
  EXPECT_THAT(CheckApplied(fresh, {Applied("q", 0), Applied("up", 0)}), IsOk());
  EXPECT_THAT(CheckApplied(fresh, {Applied("q", 0), Applied("up", 1e-6)}),
              FailsWith(kLost, "up was changed"));
}

TEST(NumbersOfTest, AreOfTheWholeChangeFromTheBase) {
  const CastNumbers numbers = NumbersOf(kPush, {Applied("q", 9), Applied("up", 16)});
  EXPECT_DOUBLE_EQ(numbers.changed_share, 0.2);
  EXPECT_DOUBLE_EQ(numbers.lost_norm, 2.5);
  EXPECT_DOUBLE_EQ(numbers.arrived_share, 0.9);
  EXPECT_EQ(NumbersOf(kPush, {Applied("q", 0)}).arrived_share, 1);
}

}  // namespace
}  // namespace tandem::trainer
