// A parameter of a policy.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tandem::trainer {

struct NamedParameter {
  std::string name;   // Hugging Face name; of adapters that of PEFT
  at::Tensor master;  // fp32, contiguous; a leaf that requires grad (except in a frozen policy)
};

}  // namespace tandem::trainer
