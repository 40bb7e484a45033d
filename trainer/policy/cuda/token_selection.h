// TokenSelection: some tokens of a packed row, for device_layer_ops.cc. Consecutive tokens are
// taken as a view, without a copy.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tandem::trainer {

class TokenSelection {
 public:
  // At least one index; rising.
  TokenSelection(const std::vector<int64_t>& indices, const at::Device& device)
      : first_(indices.front()), count_(static_cast<int64_t>(indices.size())) {
    if (indices.back() - first_ + 1 == count_) return;
    indices_ = at::tensor(indices, at::kLong).to(device);
  }

  // The tokens of x, whose dimension `dim` counts the row's tokens: a view or a copy.
  at::Tensor Take(const at::Tensor& x, int64_t dim = 0) const {
    return indices_.defined() ? x.index_select(dim, indices_) : x.narrow(dim, first_, count_);
  }
  // x at them becomes, and grows by, `values` [count, ..].
  void Put(const at::Tensor& values, at::Tensor x, int64_t dim = 0) const {
    if (indices_.defined()) {
      x.index_copy_(dim, indices_, values);
    } else {
      x.narrow(dim, first_, count_).copy_(values);
    }
  }
  void Add(const at::Tensor& values, at::Tensor x) const {
    if (indices_.defined()) {
      x.index_copy_(0, indices_, x.index_select(0, indices_).add_(values));
    } else {
      x.narrow(0, first_, count_).add_(values);
    }
  }

 private:
  const int64_t first_, count_;
  at::Tensor indices_;  // undefined: neighbours
};

}  // namespace tandem::trainer
