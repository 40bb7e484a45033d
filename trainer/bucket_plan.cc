#include "trainer/bucket_plan.h"

#include <algorithm>

namespace tandem::trainer {
namespace {

int64_t RoundUp(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

}  // namespace

std::vector<BucketPlan> PlanBuckets(std::span<const int64_t> sizes, int num_ranks,
                                    int64_t max_elements) {
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
  for (BucketPlan& bucket : buckets) {
    bucket.num_elements = RoundUp(bucket.num_elements, kBucketAlignment * num_ranks);
  }
  return buckets;
}

std::vector<Slice> SlicesOf(const BucketPlan& bucket, int num_ranks, int rank) {
  const int64_t part = bucket.num_elements / num_ranks;
  const int64_t part_begin = part * rank, part_end = part_begin + part;
  std::vector<Slice> slices;
  for (const Placement& placed : bucket.placements) {
    const int64_t begin = std::max(part_begin, placed.offset);
    const int64_t end = std::min(part_end, placed.offset + placed.num_elements);
    if (begin < end) slices.push_back({placed.parameter, begin - placed.offset, end - begin});
  }
  return slices;
}

}  // namespace tandem::trainer
