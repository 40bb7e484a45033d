#include "rollout_server/engine/cuda/device_limits.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>

#include "rollout_server/engine/cuda/device_ops.h"
#include "rollout_server/engine/cuda/step/memory_plan.h"

namespace tandem::rollout::cuda {
namespace {

// Seconds of the fastest of several runs of `work`, all of it on the stream.
template <typename Work>
double Fastest(const c10::Stream& stream, const Work& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    Wait(stream);
    const auto begin = std::chrono::steady_clock::now();
    work();
    Wait(stream);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

MachineLimits MeasureLimits(const c10::Stream& stream) {
  const c10::InferenceMode inference;
  const c10::StreamGuard on_stream(stream);
  constexpr int64_t kSide = 4096;
  MachineLimits limits;
  {
    at::Tensor from = at::zeros({kMeasuredBytes}, On(at::kByte));
    at::Tensor to = at::zeros({kMeasuredBytes}, On(at::kByte));
    // A copy reads and writes.
    limits.read_bytes_per_second = 2.0 * kMeasuredBytes / Fastest(stream, [&] { to.copy_(from); });
  }
  const double flops = 2.0 * kSide * kSide * kSide;
  const at::Tensor floats = at::randn({kSide, kSide}, On(at::kFloat)),
                   halves = floats.to(at::kBFloat16);
  limits.flops_per_second = flops / Fastest(stream, [&] { at::mm(floats, floats); });
  limits.bf16_flops_per_second = flops / Fastest(stream, [&] { at::mm(halves, halves); });
  return limits;
}

}  // namespace tandem::rollout::cuda
