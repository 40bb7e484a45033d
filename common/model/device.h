// Device: the kind of device that one side of the run computes on.
#ifndef TANDEM_COMMON_MODEL_DEVICE_H_
#define TANDEM_COMMON_MODEL_DEVICE_H_

namespace tandem {

// kCuda is a GPU that this process sees (CUDA_VISIBLE_DEVICES), in builds of the cuda preset. An
// engine uses the first one; a rank of the trainer uses the one with its local rank.
enum class Device { kCpu, kCuda };

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_DEVICE_H_
