// MakeDeviceCast: casts masters on a device for a push, bucket by bucket, without a copy in host
// memory (stage 9). The result is that of WeightCaster on the host, bit for bit. Includes LibTorch.
#pragma once

#include <memory>
#include <vector>

#include "common/weights/host_tensor.h"
#include "trainer/policy/policy.h"
#include "trainer/weight_push/bucket_source.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

// A source of buckets of whole masters, which are named by their index. It holds the tensors and
// not their values: each Fill casts the values of that moment. `dtype` is kF32 (a copy) or kBF16.
// Memory: two buckets on the device. Fill returns INVALID_ARGUMENT where a slice begins or ends
// within an element. Null in a build without CUDA.
std::shared_ptr<BucketSource> MakeDeviceCast(const std::vector<NamedParameter>& masters,
                                             DType dtype, Rounding rounding);

}  // namespace tandem::trainer
