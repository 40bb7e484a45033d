// WireBuckets: the bytes of many tensors, concatenated and cut into buckets of one size, for a push
// over a collective. Publisher and receiver compute the same plan from the same sizes. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// `length` bytes of tensor `tensor`, from `offset` on.
struct BucketSlice {
  int32_t tensor = 0;
  int64_t offset = 0;
  int64_t length = 0;

  friend bool operator==(const BucketSlice&, const BucketSlice&) = default;
};

struct Bucket {
  std::vector<BucketSlice> slices;  // contiguous, from the bucket's first byte on
  int64_t num_bytes = 0;            // bucket_bytes, except for the last bucket
};

// `sizes` has the bytes of each tensor, none negative; bucket_bytes > 0. No bucket is empty.
std::vector<Bucket> PlanBuckets(std::span<const int64_t> sizes, int64_t bucket_bytes);

}  // namespace tandem
