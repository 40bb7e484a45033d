#include "trainer/optimizer/bucket_plan.h"

#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

// 5, 20 and 16 elements take 16, 32 and 16 with their padding.
TEST(BucketPlanTest, ParametersLieFromTheLastToTheFirstAtAlignedPlaces) {
  const auto buckets = PlanBuckets(std::vector<int64_t>{5, 20, 16}, 1, 48);
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
  const auto buckets = PlanBuckets(std::vector<int64_t>{16, 100, 16}, 1, 32);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[1].placements.size(), 1u);
  EXPECT_EQ(buckets[1].num_elements, 112);
}

// 16 + 32 elements for three ranks are padded to 48: parts of 16. Rank 1 has the first 16 of
// parameter 0, rank 2 its last four.
TEST(BucketPlanTest, RanksOwnEqualPartsInTheirOrder) {
  const auto buckets = PlanBuckets(std::vector<int64_t>{20, 5}, 3, 100);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].num_elements, 48);
  EXPECT_EQ(SlicesOf(buckets[0], 3, 0), (std::vector<Slice>{{1, 0, 5}}));
  EXPECT_EQ(SlicesOf(buckets[0], 3, 1), (std::vector<Slice>{{0, 0, 16}}));
  EXPECT_EQ(SlicesOf(buckets[0], 3, 2), (std::vector<Slice>{{0, 16, 4}}));
}

TEST(BucketPlanTest, ARankMayOwnNothingButPadding) {
  const auto buckets = PlanBuckets(std::vector<int64_t>{5}, 4, 100);
  EXPECT_EQ(buckets[0].num_elements, 64);
  EXPECT_EQ(SlicesOf(buckets[0], 4, 0), (std::vector<Slice>{{0, 0, 5}}));
  EXPECT_TRUE(SlicesOf(buckets[0], 4, 3).empty());
}

TEST(BucketPlanTest, AStagesParametersLieTogetherInItsBucket) {
  std::vector<size_t> of_stage;
  const std::vector<std::vector<size_t>> stages = {{3}, {1, 2}, {0}};
  const auto buckets = PlanStageBuckets(std::vector<int64_t>{5, 20, 16, 7}, stages, 2, of_stage);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(of_stage, (std::vector<size_t>{0, 1, 2}));
  ASSERT_EQ(buckets[1].placements.size(), 2u);
  EXPECT_EQ(buckets[1].placements[1].parameter, 2u);
  EXPECT_EQ(buckets[1].placements[1].offset, 32);
  EXPECT_EQ(buckets[1].num_elements, 64) << "48 and padding to 2 x 32";
}

// Parameter 0 is the embedding and the head.
TEST(BucketPlanTest, StagesThatShareAParameterShareTheirBucket) {
  std::vector<size_t> of_stage;
  const std::vector<std::vector<size_t>> stages = {{2, 0}, {1}, {0}};
  const auto buckets = PlanStageBuckets(std::vector<int64_t>{40, 20, 16}, stages, 1, of_stage);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(of_stage, (std::vector<size_t>{0, 1, 0}));
  EXPECT_EQ(buckets[0].placements.size(), 2u) << "each once";
}

}  // namespace
}  // namespace tandem::trainer
