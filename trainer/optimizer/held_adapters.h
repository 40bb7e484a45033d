// HeldAdapters: the adapters of a policy as they are now, for a push of them. Free of LibTorch.
#pragma once

#include <vector>

#include "common/lora/lora_shape.h"
#include "common/weights/host_tensor.h"

namespace tandem::trainer {

struct HeldAdapters {
  std::vector<LoraModule> modules;
  std::vector<HostTensor> tensors;  // A and B of each, F32, whole, as copies; LoraTensors order
  std::vector<double> changes;  // ||s B A||^2 of each: how far it moves its weight from the base
  // ||s B A - s B' A'||^2 of each, to the adapters of a push before; empty: there are none.
  std::vector<double> moves;
};

}  // namespace tandem::trainer
