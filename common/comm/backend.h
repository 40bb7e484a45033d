// Backend: what a group's operations go through. Free of LibTorch.
#ifndef TANDEM_COMMON_COMM_BACKEND_H_
#define TANDEM_COMMON_COMM_BACKEND_H_

namespace tandem::comm {

// kNccl: between GPUs, one for each member, in a build of the cuda preset.
enum class Backend { kGloo, kNccl };

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_BACKEND_H_
