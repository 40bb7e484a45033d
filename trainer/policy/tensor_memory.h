// The memory of tensors that is allocated only part of the time: sharded parameters.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem::trainer {

// Allocates, uninitialised, or frees the memory of a contiguous tensor that begins at the start of
// its storage, and so that of its views. Use from the thread that computes with it.
void SetStored(const at::Tensor& tensor, bool stored);

// Whether the memory of a tensor or view is allocated.
bool IsStored(const at::Tensor& tensor);

}  // namespace tandem::trainer
