// MakeDeviceCast: the masters that lie on a device as a push sends them, bucket by bucket, without
// a copy in host memory (stage 9). Bit for bit what WeightCaster makes on the host. Includes
// LibTorch.
#ifndef TANDEM_TRAINER_POLICY_CUDA_DEVICE_CAST_H_
#define TANDEM_TRAINER_POLICY_CUDA_DEVICE_CAST_H_

#include <memory>
#include <vector>

#include "common/weights/host_tensor.h"
#include "trainer/policy/policy.h"
#include "trainer/weight_push/bucket_source.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

// Buckets of whole masters, which buckets name by index; keeps them, not their values: each Fill
// casts what they hold then. `dtype`: kF32 (a copy) or kBF16. Two rooms of a bucket on the device.
// Fill: INVALID_ARGUMENT where a slice cuts an element in two. Null in a build without CUDA.
std::shared_ptr<BucketSource> MakeDeviceCast(const std::vector<NamedParameter>& masters,
                                             DType dtype, Rounding rounding);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_CUDA_DEVICE_CAST_H_
