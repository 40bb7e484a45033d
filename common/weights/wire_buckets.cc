#include "common/weights/wire_buckets.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem {

// A tensor is split across buckets wherever a bucket is full, and a bucket may hold parts of many
// tensors, so that every broadcast except the last has the same size and no memory is lost to
// padding. Invariant: the slices in order are the bytes of the tensors in order, each byte once.
// Both sides rely on it, because a bucket on the wire has no header.
std::vector<Bucket> PlanBuckets(std::span<const int64_t> sizes, int64_t bucket_bytes) {
  TANDEM_CHECK(bucket_bytes > 0);
  std::vector<Bucket> buckets;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int64_t offset = 0; offset < sizes[tensor];) {
      if (buckets.empty() || buckets.back().num_bytes == bucket_bytes) buckets.emplace_back();
      Bucket& bucket = buckets.back();
      const int64_t length = std::min(sizes[tensor] - offset, bucket_bytes - bucket.num_bytes);
      bucket.slices.push_back({static_cast<int32_t>(tensor), offset, length});
      bucket.num_bytes += length;
      offset += length;
    }
  }
  return buckets;
}

}  // namespace tandem
