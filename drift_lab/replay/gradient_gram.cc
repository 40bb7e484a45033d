#include "drift_lab/replay/gradient_gram.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>

#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"
#include "drift_lab/replay/vector_sketch.h"

namespace tandem::drift {
namespace {

// This many products are summed in fp32, and these sums in fp64.
constexpr int64_t kProductChunk = 4096;

std::vector<double> SketchProducts(const std::vector<float>& sketches, int64_t count,
                                   int64_t width) {
  const at::Tensor rows =
      at::from_blob(const_cast<float*>(sketches.data()), {count, width}, at::kFloat);
  at::Tensor sum = at::zeros({count, count}, at::kDouble);
  for (int64_t begin = 0; begin < width; begin += kProductChunk) {
    const at::Tensor part = rows.narrow(1, begin, std::min(kProductChunk, width - begin));
    sum += at::mm(part, part.t()).to(at::kDouble);
  }
  return {sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + count * count};
}

}  // namespace

absl::StatusOr<GradientGram> ComputeGradientGram(TrainerForward& forward,
                                                 const offpolicy::Capture& capture,
                                                 std::span<const GradientRequest> requests,
                                                 uint64_t seed, GramProgress progress) {
  GradientGram gram{.size = static_cast<int64_t>(requests.size()),
                    .logprobs = std::vector<float>(static_cast<size_t>(capture.num_tokens()),
                                                   std::numeric_limits<float>::quiet_NaN()),
                    .num_parameters = forward.num_parameters()};
  const VectorSketch sketch(gram.num_parameters, kSketchWidth, seed);
  gram.relative_error = sketch.relative_error();
  const auto width = static_cast<size_t>(sketch.width());
  std::vector<float> sketches(requests.size() * width);
  for (size_t i = 0; i < requests.size(); ++i) {
    int64_t offset = 0;
    const auto take = [&](std::span<const float> gradient) {
      sketch.Add(offset, gradient, std::span(sketches).subspan(i * width, width));
      offset += static_cast<int64_t>(gradient.size());
    };
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<float> logprobs,
        forward.Differentiate(capture, requests[i].completion, requests[i].direction, take));
    std::ranges::copy(
        logprobs,
        gram.logprobs.begin() + capture.token_offsets[static_cast<size_t>(requests[i].completion)]);
    progress(static_cast<int64_t>(i) + 1);
  }
  TANDEM_RETURN_IF_ERROR(CatchTorch("inner products of gradients", [&] {
    gram.products = SketchProducts(sketches, gram.size, sketch.width());
  }));
  return gram;
}

}  // namespace tandem::drift
