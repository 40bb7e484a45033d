// TensorSource: a tensor that is loaded on demand, for sets too large to hold at once, such as the
// optimizer's state of many ranks on its way to or from a file. Free of LibTorch.
#ifndef TANDEM_COMMON_MODEL_TENSOR_SOURCE_H_
#define TANDEM_COMMON_MODEL_TENSOR_SOURCE_H_

#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

struct TensorSource {
  TensorSpec spec;
  // Returns a tensor of `spec`. Whoever makes the source documents who may call it, in which order,
  // and how long the bytes stay valid.
  std::function<absl::StatusOr<HostTensor>()> read;
};

// A source for a tensor that is in memory already.
inline TensorSource Present(HostTensor tensor) {
  TensorSpec spec = tensor.spec;
  return {std::move(spec), [tensor = std::move(tensor)] { return tensor; }};
}

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_TENSOR_SOURCE_H_
