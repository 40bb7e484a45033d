// What the runner checks and measures on its own device at the start: that the kernels are batch
// invariant, and how fast the device is. Includes LibTorch; both throw c10::Error when the device
// fails.
#pragma once

#include <c10/core/Stream.h>

#include "absl/status/status.h"
#include "common/cuda/kernels.h"
#include "common/model/model_config.h"
#include "common/tensor/machine_limits.h"

namespace tandem::rollout::cuda {

// Do the kernels keep the promise of numerics `invariant` on this device? Runs each of them, at the
// sizes of `config` and on the current stream, on rows alone and in larger batches, which must give
// the same bytes (rows_alone.h). CheckInvariance (common/model/numerics_self_test.h) does the same
// for the CPU.
//   FAILED_PRECONDITION  a kernel's bits depend on the batch composition (named, with the sizes)
absl::Status CheckDeviceInvariance(const ModelConfig& config, tandem::cuda::Element element);

// How fast the device reads memory and multiplies, each the best of five tries, as
// MeasureMachineLimits (common/tensor/machine_limits.h) does for the CPU. Takes kMeasurementBytes
// (memory_plan.h) of the device while it runs, and waits for the stream.
MachineLimits MeasureLimits(const c10::Stream& stream);

}  // namespace tandem::rollout::cuda
