// BucketPlan: how parameters lie one after the other in flat buckets, so that ranks can sum their
// gradients in a few large operations that begin while the backward pass is under way, and which
// part of a bucket each rank updates. Pure. Used by parameter_buckets.cc.
#ifndef TANDEM_TRAINER_OPTIMIZER_BUCKET_PLAN_H_
#define TANDEM_TRAINER_OPTIMIZER_BUCKET_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::trainer {

// Parameters start at multiples of this many elements: 64 bytes of fp32, what an allocation of
// their own would be aligned to.
inline constexpr int64_t kBucketAlignment = 16;

struct BucketOptions {
  bool shard_parameters = false;  // each rank holds its part only
  // At most, of parameters that are not sharded: larger ones are fewer operations, smaller ones
  // begin earlier.
  int64_t bucket_bytes = 25'000'000;
};

struct Placement {
  size_t parameter = 0;
  int64_t offset = 0;        // elements from the start of the bucket
  int64_t num_elements = 0;  // of the parameter
};

struct BucketPlan {
  std::vector<Placement> placements;  // by offset; gaps between them and at the end are padding
  int64_t num_elements = 0;           // a multiple of kBucketAlignment * num_ranks
};

// Elements [begin, begin + num_elements) of a parameter.
struct Slice {
  size_t parameter = 0;
  int64_t begin = 0, num_elements = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
};

// Every parameter (sizes[i] elements) in one bucket, from the last to the first: about the order in
// which a backward pass completes them. A bucket holds at most `max_elements`, the padding between
// parameters included, or one parameter that is larger.
std::vector<BucketPlan> PlanBuckets(std::span<const int64_t> sizes, int num_ranks,
                                    int64_t max_elements);

// A bucket for each stage of a pass over the model (stages[s]: the parameters it uses), so that a
// stage's parameters come together. Stages that share a parameter share their bucket. `of_stage`
// gets the bucket of each.
std::vector<BucketPlan> PlanStageBuckets(std::span<const int64_t> sizes,
                                         std::span<const std::vector<size_t>> stages, int num_ranks,
                                         std::vector<size_t>& of_stage);

// What lies in the rank's equal part of the bucket, by place. Parts are in the order of ranks; one
// may be padding only.
std::vector<Slice> SlicesOf(const BucketPlan& bucket, int num_ranks, int rank);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_OPTIMIZER_BUCKET_PLAN_H_
