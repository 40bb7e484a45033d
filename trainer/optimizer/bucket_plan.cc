#include "trainer/optimizer/bucket_plan.h"

#include <algorithm>
#include <optional>

namespace tandem::trainer {
namespace {

int64_t RoundUp(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

void Append(size_t parameter, int64_t size, BucketPlan& bucket) {
  bucket.placements.push_back({parameter, bucket.num_elements, size});
  bucket.num_elements += RoundUp(size, kBucketAlignment);
}

void PadForRanks(int num_ranks, std::vector<BucketPlan>& buckets) {
  for (BucketPlan& bucket : buckets) {
    bucket.num_elements = RoundUp(bucket.num_elements, kBucketAlignment * num_ranks);
  }
}

}  // namespace

std::vector<BucketPlan> PlanBuckets(std::span<const int64_t> sizes, int num_ranks,
                                    int64_t max_elements) {
  std::vector<BucketPlan> buckets;
  for (size_t i = sizes.size(); i-- > 0;) {
    const int64_t padded = RoundUp(sizes[i], kBucketAlignment);
    if (buckets.empty() || buckets.back().num_elements + padded > max_elements) {
      buckets.emplace_back();
    }
    Append(i, sizes[i], buckets.back());
  }
  PadForRanks(num_ranks, buckets);
  return buckets;
}

std::vector<BucketPlan> PlanStageBuckets(std::span<const int64_t> sizes,
                                         std::span<const std::vector<size_t>> stages, int num_ranks,
                                         std::vector<size_t>& stage_buckets) {
  std::vector<BucketPlan> buckets;
  std::vector<std::optional<size_t>> parameter_buckets(sizes.size());
  stage_buckets.clear();
  for (const std::vector<size_t>& stage : stages) {
    size_t bucket = buckets.size();
    for (const size_t parameter : stage) bucket = parameter_buckets[parameter].value_or(bucket);
    if (bucket == buckets.size()) buckets.emplace_back();
    for (const size_t parameter : stage) {
      if (parameter_buckets[parameter].has_value()) continue;
      parameter_buckets[parameter] = bucket;
      Append(parameter, sizes[parameter], buckets[bucket]);
    }
    stage_buckets.push_back(bucket);
  }
  PadForRanks(num_ranks, buckets);
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
