// KeptMasters: a copy of the masters at the time a learner was asked to keep them. Free of LibTorch
// and protobuf.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/weights/host_tensor.h"

namespace tandem::trainer {

struct KeptMasters {
  int64_t number = 0;                 // counts the copies that this learner made
  std::vector<TensorSource> tensors;  // F32, Hugging Face names
  std::shared_ptr<const void> owner;  // the copy lives as long as this
  // A and B of a policy with adapters, with which `tensors` were merged: LoraTensors order, F32.
  std::vector<HostTensor> adapter = {};
  int64_t adapter_rank = 0;
  float adapter_scaling = 1;
};

}  // namespace tandem::trainer
