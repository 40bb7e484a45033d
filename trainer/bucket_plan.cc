#include "trainer/bucket_plan.h"

namespace tandem::trainer {
namespace {

int64_t RoundUp(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

}  // namespace

std::vector<BucketPlan> PlanBuckets(std::span<const int64_t> sizes, int64_t max_elements) {
  std::vector<BucketPlan> buckets;
  for (size_t i = sizes.size(); i-- > 0;) {
    const int64_t padded = RoundUp(sizes[i], kBucketAlignment);
    if (buckets.empty() || buckets.back().num_elements + padded > max_elements) {
      buckets.emplace_back();
    }
    BucketPlan& bucket = buckets.back();
    bucket.placements.push_back({i, bucket.num_elements, sizes[i]});
    bucket.num_elements += padded;
  }
  return buckets;
}

}  // namespace tandem::trainer
