// Device: where a side of the run computes.
#ifndef TANDEM_COMMON_MODEL_DEVICE_H_
#define TANDEM_COMMON_MODEL_DEVICE_H_

namespace tandem {

// kCuda: a GPU this process sees (CUDA_VISIBLE_DEVICES), in a build of the cuda preset. An engine
// takes the first, a rank of the trainer the one of its number on the machine.
enum class Device { kCpu, kCuda };

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_DEVICE_H_
