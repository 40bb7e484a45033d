// The memory of tensors that are there only part of the time.
#ifndef TANDEM_TRAINER_POLICY_TENSOR_MEMORY_H_
#define TANDEM_TRAINER_POLICY_TENSOR_MEMORY_H_

#include <ATen/core/Tensor.h>

namespace tandem::trainer {

// The memory behind a contiguous tensor that begins at its storage's start, and so behind its
// views, comes, uninitialised, or goes. Use from the thread that computes with it.
void SetStored(const at::Tensor& tensor, bool stored);

// Is it there? Of a tensor or a view.
bool IsStored(const at::Tensor& tensor);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_TENSOR_MEMORY_H_
