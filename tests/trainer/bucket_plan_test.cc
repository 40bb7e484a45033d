#include "trainer/bucket_plan.h"

#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

// 5, 20 and 16 elements take 16, 32 and 16 with their padding.
TEST(BucketPlanTest, ParametersLieFromTheLastToTheFirstAtAlignedPlaces) {
  const auto buckets = PlanBuckets(std::vector<int64_t>{5, 20, 16}, 48);
  ASSERT_EQ(buckets.size(), 2u);
  ASSERT_EQ(buckets[0].placements.size(), 2u);
  EXPECT_EQ(buckets[0].placements[0].parameter, 2u);
  EXPECT_EQ(buckets[0].placements[0].offset, 0);
  EXPECT_EQ(buckets[0].placements[1].parameter, 1u);
  EXPECT_EQ(buckets[0].placements[1].offset, 16);
  EXPECT_EQ(buckets[0].placements[1].num_elements, 20);
  EXPECT_EQ(buckets[0].num_elements, 48);
  EXPECT_EQ(buckets[1].placements[0].parameter, 0u);
  EXPECT_EQ(buckets[1].num_elements, 16);
}

TEST(BucketPlanTest, AParameterLargerThanABucketHasOneOfItsOwn) {
  const auto buckets = PlanBuckets(std::vector<int64_t>{16, 100, 16}, 32);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[1].placements.size(), 1u);
  EXPECT_EQ(buckets[1].num_elements, 112);
}

}  // namespace
}  // namespace tandem::trainer
