#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "trainer/policy/cuda/launch.h"

namespace tandem::trainer {

at::Device CurrentDevice() { return {at::kCUDA, c10::cuda::current_device()}; }

tandem::cuda::Stream CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

}  // namespace tandem::trainer
