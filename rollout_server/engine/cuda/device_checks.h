// CheckDeviceInvariance: do the kernels keep, on this very device, the promise behind numerics
// `invariant`? Each is run on rows alone and in company and must give the same bytes
// (rows_alone.h); as CheckInvariance (common/model/numerics_self_test.h) does with the CPU's.
#pragma once

#include "absl/status/status.h"
#include "common/cuda/kernels.h"
#include "common/model/model_config.h"

namespace tandem::rollout {

// At the sizes of `config`, on the current stream. Throws c10::Error when the device fails.
//   FAILED_PRECONDITION  a kernel gave other bits in company (named, with the sizes)
absl::Status CheckDeviceInvariance(const ModelConfig& config, tandem::cuda::Element element);

}  // namespace tandem::rollout
