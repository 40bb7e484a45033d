// The rows of a safetensors file, in which every tensor has one row a sequence ([S, T], or [S] for what
// is said of a sequence once). An item has a member for each tensor. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

class TensorRows {
 public:
  //   errors of ReadSafetensors
  //   INVALID_ARGUMENT  tensors of other than one or two dimensions, or of different numbers of rows
  static absl::StatusOr<TensorRows> Open(const std::string& path);

  int64_t num_rows() const { return num_rows_; }
  nlohmann::json Row(int64_t row) const;

 private:
  std::vector<HostTensor> tensors_;
  int64_t num_rows_ = 0;
};

}  // namespace tandem::drift
