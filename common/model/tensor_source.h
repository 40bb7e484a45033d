// TensorSource: a tensor that is there once it is read, for those too large to be held together:
// the optimizer's state of many ranks, on its way to a file or from it. Free of LibTorch.
#ifndef TANDEM_COMMON_MODEL_TENSOR_SOURCE_H_
#define TANDEM_COMMON_MODEL_TENSOR_SOURCE_H_

#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

struct TensorSource {
  TensorSpec spec;
  // What it gives is of `spec`. Whoever makes the source says what else must hold: who calls it, in
  // which order, how long its bytes stay as they are.
  std::function<absl::StatusOr<HostTensor>()> read;
};

// A tensor that is there already.
inline TensorSource Present(HostTensor tensor) {
  TensorSpec spec = tensor.spec;
  return {std::move(spec), [tensor = std::move(tensor)] { return tensor; }};
}

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_TENSOR_SOURCE_H_
