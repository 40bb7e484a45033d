#include "rollout_server/engine/cuda/device_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/forward_kernels.h"
#include "rollout_server/engine/cuda/device_ops.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/cuda/rows_alone.h"
#include "rollout_server/engine/cuda/step/memory_plan.h"

namespace tandem::rollout::cuda {
namespace {

using tandem::cuda::Element;

constexpr int64_t kProductRows = 70;      // more than one tile of either shape
constexpr int64_t kProductColumns = 150;  // at most: tiles and a rest

at::ScalarType TypeOf(Element element) {
  return element == Element::kBf16 ? at::kBFloat16 : at::kFloat;
}

at::Tensor Normal(int64_t size, uint32_t seed, at::ScalarType type) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) x = normal(random);
  at::Tensor on_device = at::empty({size}, On(type));
  on_device.copy_(at::from_blob(values.data(), {size}));
  return on_device;
}

template <typename T>
at::Tensor Copied(const std::vector<T>& values) {
  const auto size = static_cast<int64_t>(values.size() * sizeof(T));
  at::Tensor on_device = at::empty({size}, On(at::kByte));
  on_device.copy_(
      at::from_blob(const_cast<T*>(values.data()), {size}, at::TensorOptions().dtype(at::kByte)));
  return on_device;
}

std::vector<uint8_t> BytesOf(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU).contiguous();  // waits
  const auto* const begin = static_cast<const uint8_t*>(host.const_data_ptr());
  return {begin, begin + host.nbytes()};
}

const void* Row(const at::Tensor& matrix, int64_t row, int64_t width) {
  return static_cast<const char*>(matrix.const_data_ptr()) +
         row * width * static_cast<int64_t>(matrix.element_size());
}

absl::Status CheckProduct(int64_t inner, int64_t outer, Element element) {
  const at::Tensor x = Normal(kProductRows * inner, 1, TypeOf(element));
  const at::Tensor weight = Normal(outer * inner, 2, TypeOf(element));
  return CheckRowsAlone(absl::StrCat("a product over ", inner, " inputs"), kProductRows,
                        [&](int64_t first, int64_t count) {
                          at::Tensor out = at::empty({count, outer}, On(at::kFloat));
                          tandem::cuda::RunMatmul({.x = Row(x, first, inner),
                                                   .weight = weight.const_data_ptr(),
                                                   .element = element,
                                                   .rows = count,
                                                   .inner = inner,
                                                   .outer = outer,
                                                   .out = out.data_ptr<float>()},
                                                  CurrentStream());
                          return BytesOf(out);
                        });
}

absl::Status CheckNorm(const ModelConfig& config, Element element) {
  constexpr int64_t kRows = 19;
  const int64_t width = config.hidden_size;
  const at::Tensor hidden = Normal(kRows * width, 3, at::kFloat);
  const at::Tensor weight = Normal(width, 4, at::kFloat);
  return CheckRowsAlone(
      absl::StrCat("a norm over ", width), kRows, [&](int64_t first, int64_t count) {
        at::Tensor out = at::empty({count, width}, On(TypeOf(element)));
        tandem::cuda::RunAddNorm({.hidden = hidden.data_ptr<float>() + first * width,
                                  .weight = weight.const_data_ptr<float>(),
                                  .eps = 1e-5f,
                                  .rows = count,
                                  .width = width,
                                  .normed = out.data_ptr(),
                                  .element = element},
                                 CurrentStream());
        return BytesOf(out);
      });
}

// With contexts that end before, at and after the border of a chunk, and blocks in falling order.
absl::Status CheckAttention(const ModelConfig& config, Element element) {
  constexpr int64_t kChunk = tandem::cuda::kAttentionChunk, kBlocks = 3 * kChunk / kKvBlockTokens;
  std::vector<int32_t> contexts = {1, 16, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk + 40};
  for (int32_t more = 1; contexts.size() < 18; ++more) contexts.push_back(37 * more);
  const auto rows = static_cast<int64_t>(contexts.size());
  std::vector<int32_t> table, sequences(contexts.size(), 0);
  for (int32_t b = 0; b < kBlocks; ++b) table.push_back(static_cast<int32_t>(kBlocks) - 1 - b);
  const int64_t d = config.head_dim, width = config.num_heads * d;
  const int64_t cache = kBlocks * config.num_kv_heads * kKvBlockTokens * d;
  const at::Tensor keys = Normal(cache, 5, TypeOf(element)),
                   values = Normal(cache, 6, TypeOf(element));
  const at::Tensor queries = Normal(rows * width, 7, at::kFloat);
  const at::Tensor tables = Copied(table), of_rows = Copied(sequences), ends = Copied(contexts);
  return CheckRowsAlone("attention", rows, [&](int64_t first, int64_t count) {
    const int64_t longest =
        *std::max_element(contexts.begin() + first, contexts.begin() + first + count);
    at::Tensor scratch = at::empty(
        {tandem::cuda::AttentionScratch(count, config.num_heads, d, longest)}, On(at::kFloat));
    at::Tensor out = at::empty({count, width}, On(TypeOf(element)));
    tandem::cuda::RunPagedAttention(
        {.queries = queries.const_data_ptr<float>() + first * width,
         .keys = keys.const_data_ptr(),
         .values = values.const_data_ptr(),
         .kv = element,
         .block_tables = static_cast<const int32_t*>(tables.const_data_ptr()),
         .sequences = static_cast<const int32_t*>(of_rows.const_data_ptr()) + first,
         .contexts = static_cast<const int32_t*>(ends.const_data_ptr()) + first,
         .rows = count,
         .heads = config.num_heads,
         .kv_heads = config.num_kv_heads,
         .head_dim = d,
         .max_blocks = kBlocks,
         .longest = longest,
         .scratch = scratch.data_ptr<float>(),
         .out = out.data_ptr(),
         .element = element},
        CurrentStream());
    return BytesOf(out);
  });
}

absl::Status CheckDraws(const ModelConfig& config) {
  constexpr int64_t kRows = 4;
  const at::Tensor logits = Normal(kRows * config.vocab_size, 8, at::kFloat);
  std::vector<Draw> draws(kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    draws[i] = {.seed = 9, .index = static_cast<uint32_t>(i), .position = 3, .row = i};
    draws[i].temperature = 0.8f;
    draws[i].top_p = i % 2 == 0 ? 1.0f : 0.9f;
  }
  const at::Tensor tasks = Copied(draws);
  return CheckRowsAlone("a draw", kRows, [&](int64_t first, int64_t count) {
    std::vector<Drawn> empty(static_cast<size_t>(count));
    at::Tensor drawn = Copied(empty);
    const at::Tensor workspace =
        at::empty({DrawWorkspaceBytes(config.vocab_size, count)}, On(at::kByte));
    DrawTokens({.logits = logits.const_data_ptr<float>(),
                .vocabulary = config.vocab_size,
                .draws = static_cast<const Draw*>(tasks.const_data_ptr()) + first,
                .num_draws = count,
                .drawn = static_cast<Drawn*>(drawn.data_ptr()),
                .workspace = workspace.data_ptr()},
               CurrentStream());
    return BytesOf(drawn);
  });
}

// Seconds of the fastest of five runs of `work`, which runs on the stream.
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

absl::Status CheckDeviceInvariance(const ModelConfig& config, Element element) {
  const c10::InferenceMode inference;
  const int64_t heads = config.num_heads * config.head_dim;
  const int64_t qkv = heads + 2 * config.num_kv_heads * config.head_dim;
  for (const auto& [inner, outer] : {std::pair(config.hidden_size, qkv),
                                     {heads, config.hidden_size},
                                     {config.intermediate_size, config.hidden_size}}) {
    TANDEM_RETURN_IF_ERROR(CheckProduct(inner, std::min(outer, kProductColumns), element));
  }
  TANDEM_RETURN_IF_ERROR(CheckNorm(config, element));
  TANDEM_RETURN_IF_ERROR(CheckAttention(config, element));
  TANDEM_RETURN_IF_ERROR(CheckDraws(config));
  if (const char* const error = tandem::cuda::KernelError())
    TORCH_CHECK(false, "a kernel failed: ", error);
  return absl::OkStatus();
}

MachineLimits MeasureLimits(const c10::Stream& stream) {
  const c10::InferenceMode inference;
  const c10::StreamGuard on_stream(stream);
  constexpr int64_t kSide = 4096;
  MachineLimits limits;
  {
    at::Tensor from = at::zeros({kMeasuredBytes}, On(at::kByte));
    at::Tensor to = at::zeros({kMeasuredBytes}, On(at::kByte));
    // A copy reads and writes each byte.
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
