#include "common/tensor/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <string_view>

namespace tandem {
namespace {

at::Tensor Pointwise(const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&, std::string_view,
                               c10::List<std::optional<at::Scalar>>,
                               std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Signature>();
  return op.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

at::Tensor Reorder(const at::Tensor& weight, int64_t expected_rows) {
  using Signature = at::Tensor(const at::Tensor&, std::optional<c10::SymInt>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<Signature>();
  return op.call(weight, c10::SymInt(expected_rows));
}

}  // namespace

bool HasFastBf16() {
  // AMX comes only on machines that have AVX512-BF16 too.
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

PackedLinear::PackedLinear(const at::Tensor& weight, const at::Tensor& bias, int64_t expected_rows)
    : bias_(bias), out_features_(weight.size(0)) {
  round_input_ = weight.scalar_type() == at::kBFloat16;
  native_bf16_ = round_input_ && HasFastBf16();
  const at::Tensor dense = native_bf16_ ? weight : weight.to(at::kFloat);
  packed_ = Reorder(dense.contiguous(), expected_rows);
}

at::Tensor PackedLinear::Run(const at::Tensor& x) const {
  at::Tensor input = x;
  if (round_input_) {
    input = x.to(at::kBFloat16);
    if (!native_bf16_) input = input.to(at::kFloat);
  }
  if (native_bf16_) {
    at::Tensor out = Pointwise(input, packed_, std::nullopt).to(at::kFloat);
    return bias_.defined() ? out.add_(bias_) : out;
  }
  return Pointwise(input, packed_,
                   bias_.defined() ? std::optional<at::Tensor>(bias_) : std::nullopt);
}

}  // namespace tandem
