#include "trainer/policy/fake_quantised.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "common/matrix/quantise.h"

namespace tandem::trainer {
namespace {

// The same as QuantiseInt8, in operations of a device.
at::Tensor Int8OnDevice(const at::Tensor& rows) {
  const at::Tensor x = rows.to(at::kFloat);
  const at::Tensor scale = x.abs().amax(-1, /*keepdim=*/true).div(127.0);
  const at::Tensor divisor = at::where(scale.gt(0), scale, at::ones_like(scale));
  return x.div(divisor).round_().clamp_(-127.0, 127.0).mul_(scale);
}

}  // namespace

at::Tensor FakeQuantised(const at::Tensor& rows, const WeightFormat& format) {
  if (!rows.is_cpu() && format.scheme == WeightScheme::kInt8) return Int8OnDevice(rows);
  const at::Tensor out =
      rows.cpu().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  float* values = out.data_ptr<float>();
  const int64_t depth = out.size(1);
  at::parallel_for(0, out.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      FakeQuantise(format, values + o * depth, depth, values + o * depth);
    }
  });
  return out.to(rows.device());
}

}  // namespace tandem::trainer
