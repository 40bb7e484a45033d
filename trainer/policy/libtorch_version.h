// The version of LibTorch, for the run card. It has a file of its own because no file includes both
// LibTorch and protobuf.
#pragma once

namespace tandem::trainer {

const char* LibTorchVersion();  // "2.11.0"

}  // namespace tandem::trainer
