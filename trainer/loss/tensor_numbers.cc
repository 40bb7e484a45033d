#include "trainer/loss/tensor_numbers.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace tandem::trainer {

std::vector<double> ToDoubles(const at::Tensor& x) {
  const at::Tensor numbers = x.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* begin = numbers.const_data_ptr<double>();
  return {begin, begin + numbers.numel()};
}

at::Tensor ToFloatTensor(std::span<const double> values) {
  at::Tensor result = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::ranges::transform(values, result.data_ptr<float>(),
                         [](double value) { return static_cast<float>(value); });
  return result;
}

}  // namespace tandem::trainer
