#include "common/weights/wire_buckets.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(WireBucketsTest, SmallTensorsShareABucketAndALargeOneIsCut) {
  const std::vector<int64_t> sizes = {3, 0, 4, 21};
  const std::vector<Bucket> buckets = PlanBuckets(sizes, 10);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].slices, (std::vector<BucketSlice>{{0, 0, 3}, {2, 0, 4}, {3, 0, 3}}));
  EXPECT_EQ(buckets[0].num_bytes, 10);
  EXPECT_EQ(buckets[1].slices, (std::vector<BucketSlice>{{3, 3, 10}}));
  EXPECT_EQ(buckets[2].slices, (std::vector<BucketSlice>{{3, 13, 8}}));
  EXPECT_EQ(buckets[2].num_bytes, 8);
}

TEST(WireBucketsTest, NothingTakesNoBucket) {
  EXPECT_TRUE(PlanBuckets(std::vector<int64_t>{0, 0}, 10).empty());
}

}  // namespace
}  // namespace tandem
