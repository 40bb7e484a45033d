#include "trainer/policy/tensor_memory.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

namespace tandem::trainer {

void SetStored(const at::Tensor& tensor, bool stored) {
  const c10::DeviceGuard guard(tensor.device());  // allocators of devices take the current one
  const size_t bytes = stored ? static_cast<size_t>(tensor.numel()) * tensor.element_size() : 0;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

bool IsStored(const at::Tensor& tensor) { return tensor.storage().nbytes() > 0; }

}  // namespace tandem::trainer
