#include "trainer/prompts/group_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

std::vector<int64_t> Allocate(std::vector<double> deviations, int64_t total, int64_t min,
                              int64_t max) {
  return AllocateCompletions(deviations, total, min, max);
}

TEST(AllocateCompletions, IsInProportionToTheDeviations) {
  EXPECT_THAT(Allocate({0.1, 0.2, 0.3}, 12, 1, 12), ElementsAre(2, 4, 6));
}

TEST(AllocateCompletions, KeepsTheBoundsAndTheTotal) {
  // Without bounds it would be 0, 8 and 8.
  EXPECT_THAT(Allocate({0, 0.5, 0.5}, 16, 2, 12), ElementsAre(2, 7, 7));
  // 1 and 11 without bounds; what the second may not have goes to the first.
  EXPECT_THAT(Allocate({0.1, 1.1}, 12, 1, 8), ElementsAre(4, 8));
}

TEST(AllocateCompletions, GivesTheRestToTheLargestFractions) {
  // 3.33 each, and 10 = 3 * 3 + 1: the first of equals.
  EXPECT_THAT(Allocate({1, 1, 1}, 10, 1, 10), ElementsAre(4, 3, 3));
  // 1.67 and 8.33.
  EXPECT_THAT(Allocate({1, 5}, 10, 1, 10), ElementsAre(2, 8));
}

TEST(AllocateCompletions, AllAlikeWhereNothingIsUncertain) {
  EXPECT_THAT(Allocate({0, 0}, 8, 2, 6), ElementsAre(4, 4));
  EXPECT_THAT(Allocate({}, 0, 2, 6), ElementsAre());
}

TEST(AllocateCompletions, HoldsTheBudgetForAnyDeviations) {
  for (int seed = 0; seed < 200; ++seed) {
    std::vector<double> deviations;
    for (int i = 0; i < 1 + seed % 7; ++i) deviations.push_back((seed * 31 + i * 17) % 11 * 0.05);
    const auto groups = std::ssize(deviations);
    const std::vector<int64_t> sizes = Allocate(deviations, 8 * groups, 3, 20);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 8 * groups);
    EXPECT_THAT(sizes, ::testing::Each(::testing::AllOf(::testing::Ge(3), ::testing::Le(20))));
  }
}

TEST(GroupSizeOptions, ContradictionsAreRefused) {
  EXPECT_THAT(CheckOptions({.kind = GroupSizeKind::kAdaptive, .min = 4, .max = 8}, 16),
              FailsWith(absl::StatusCode::kInvalidArgument, "between group_size.min 4"));
  EXPECT_THAT(CheckOptions({.kind = GroupSizeKind::kSequential, .min = 8}, 8),
              FailsWith(absl::StatusCode::kInvalidArgument, "must be above"));
  EXPECT_THAT(CheckOptions({.kind = GroupSizeKind::kSequential, .min = 1}, 8),
              FailsWith(absl::StatusCode::kInvalidArgument, "at least 2"));
  EXPECT_THAT(CheckOptions({.kind = GroupSizeKind::kFixed, .min = 9}, 8), IsOk());
  EXPECT_EQ(SmallestGroup({.kind = GroupSizeKind::kFixed, .min = 2}, 8), 8);
  EXPECT_EQ(SmallestGroup({.kind = GroupSizeKind::kSequential, .min = 2}, 8), 2);
}

}  // namespace
}  // namespace tandem::trainer
