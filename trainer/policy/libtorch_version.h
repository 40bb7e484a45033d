// The version of LibTorch, for the run card. It has a file of its own because no file includes both
// LibTorch and protobuf.
#ifndef TANDEM_TRAINER_POLICY_LIBTORCH_VERSION_H_
#define TANDEM_TRAINER_POLICY_LIBTORCH_VERSION_H_

namespace tandem::trainer {

const char* LibTorchVersion();  // "2.11.0"

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_LIBTORCH_VERSION_H_
