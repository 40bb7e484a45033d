// MeasureLimits: how fast the CUDA device reads memory and multiplies, now: as
// MeasureMachineLimits (common/tensor/machine_limits.h) does of the CPU. Includes LibTorch; takes
// kMeasurementBytes (memory_plan.h) of the device for as long as it runs, and throws c10::Error.
#pragma once

#include <c10/core/Stream.h>

#include "common/tensor/machine_limits.h"

namespace tandem::rollout::cuda {

// The best of five tries of each. Waits for the stream.
MachineLimits MeasureLimits(const c10::Stream& stream);

}  // namespace tandem::rollout::cuda
