#include "common/tensor/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <string_view>

namespace tandem {
namespace {

at::Tensor Pointwise(const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
      c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Signature>();
  return op.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace

bool HasFastBf16() {
  // Every machine with AMX also has AVX512-BF16.
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}

at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias) {
  if (x.scalar_type() == at::kBFloat16 && !HasFastBf16()) {
    return Pointwise(x.to(at::kFloat), weight.to(at::kFloat),
                     bias ? std::optional<at::Tensor>(bias->to(at::kFloat)) : std::nullopt)
        .to(at::kBFloat16);
  }
  return Pointwise(x, weight, bias);
}

}  // namespace tandem
