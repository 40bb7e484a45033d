#include "trainer/policy/weights/fake_quantised.h"

#include <ATen/Parallel.h>

#include "common/matrix/quantise.h"

namespace tandem::trainer {

at::Tensor FakeQuantised(const at::Tensor& rows, const WeightFormat& format) {
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
