// BucketPlan: where parameters lie in flat buckets, and which part of a bucket each rank updates.
// Pure. Used by parameter_buckets.cc.
//
// The idea: a model has hundreds of parameters, most of them small. Laid one after the other in a
// few large buckets they are exchanged in a few large collective operations, and an operation can
// begin while the backward pass is still computing the parameters of the next bucket (Li et al.,
// "PyTorch Distributed", VLDB 2020).
//
// What holds: the size of a bucket is a multiple of kBucketAlignment * num_ranks, so that it
// divides into equal, aligned parts, one for each rank. The border between two parts may lie within
// a parameter; a Slice names the piece of a parameter that lies in one part. The slices of all
// ranks together cover every element of every parameter once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::trainer {

// Parameters start at multiples of this many elements: 64 bytes of fp32, the alignment that an
// allocation of their own would have.
inline constexpr int64_t kBucketAlignment = 16;

struct BucketOptions {
  bool shard_parameters = false;  // each rank holds its part only
  // The largest bucket of parameters that are not sharded. Larger buckets need fewer operations,
  // smaller ones begin earlier.
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

// Places every parameter (sizes[i] elements) in a bucket, from the last parameter to the first:
// about the order in which a backward pass completes them. A bucket holds at most `max_elements`,
// the padding between parameters included, or one parameter that is larger.
std::vector<BucketPlan> PlanBuckets(std::span<const int64_t> sizes, int num_ranks,
                                    int64_t max_elements);

// Makes a bucket for each stage of a pass over the model (stages[s]: the parameters that it uses),
// so that one operation brings all parameters of a stage. Stages that share a parameter share their
// bucket. `stage_buckets` gets the bucket of each stage.
std::vector<BucketPlan> PlanStageBuckets(std::span<const int64_t> sizes,
                                         std::span<const std::vector<size_t>> stages, int num_ranks,
                                         std::vector<size_t>& stage_buckets);

// The slices that lie in the rank's part of the bucket, by place. Parts are in the order of ranks;
// a part may be padding only, and then there are none.
std::vector<Slice> SlicesOf(const BucketPlan& bucket, int num_ranks, int rank);

}  // namespace tandem::trainer
