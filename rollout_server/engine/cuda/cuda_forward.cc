#include "rollout_server/engine/cuda/cuda_forward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "rollout_server/engine/cuda/device_ops.h"
#include "rollout_server/engine/cuda/step/step_inputs.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"

namespace tandem::rollout {
namespace {

using cuda::CurrentStream;
using cuda::On;
using tandem::cuda::Element;

const float* Floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

}  // namespace

CudaForward::CudaForward(const ModelConfig& config, ComputeDType dtype, int64_t num_blocks,
                         bool own_products)
    : config_(config),
      type_(dtype == ComputeDType::kBf16 ? at::kBFloat16 : at::kFloat),
      element_(dtype == ComputeDType::kBf16 ? Element::kBf16 : Element::kFp32),
      own_products_(own_products) {
  cache_ = at::zeros({2 * config.num_layers, num_blocks, config.num_kv_heads,
                      KvBlockPool::kBlockTokens, config.head_dim},
                     On(type_));
  const std::vector<float> frequencies =
      MakeRotaryEmbedding(config.rope, config.head_dim).inverse_frequencies;
  frequencies_ = at::empty({config.head_dim / 2}, On(at::kFloat));
  frequencies_.copy_(at::from_blob(const_cast<float*>(frequencies.data()), {config.head_dim / 2}));
}

CudaForward::Residual CudaForward::Layers(const CudaWeights& weights,
                                          const DeviceInputs& inputs) const {
  const int64_t n = inputs.ids.numel();
  Residual residual = {at::empty({n, config_.hidden_size}, On(at::kFloat)), {}, nullptr};
  tandem::cuda::Embed(weights.embedding.const_data_ptr(), element_,
                      inputs.ids.const_data_ptr<int32_t>(), n, config_.hidden_size,
                      residual.hidden.data_ptr<float>(), CurrentStream());
  at::Tensor normed = at::empty({n, config_.hidden_size}, On(type_));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const CudaLayer& layer = weights.layers[i];
    Norm(residual, layer.input_norm, normed);
    const at::Tensor attended =
        Attend(static_cast<int64_t>(i), layer, Multiply(normed, layer.qkv.weight), inputs);
    residual.delta = Multiply(attended, layer.o.weight);
    residual.bias = &layer.o.bias;
    Norm(residual, layer.post_norm, normed);
    const at::Tensor gate_up = Multiply(normed, layer.gate_up.weight);
    at::Tensor activated = at::empty({n, config_.intermediate_size}, On(type_));
    tandem::cuda::SwiGlu(Floats(gate_up), Floats(layer.gate_up.bias), n, config_.intermediate_size,
                         activated.data_ptr(), element_, CurrentStream());
    residual.delta = Multiply(activated, layer.down.weight);
    residual.bias = &layer.down.bias;
  }
  return residual;
}

// x [N, I] times weight [O, I] transposed, in fp32.
at::Tensor CudaForward::Multiply(const at::Tensor& x, const at::Tensor& weight) const {
  if (!own_products_) return cuda::Product(x, weight);
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, On(at::kFloat));
  tandem::cuda::RunMatmul({.x = x.const_data_ptr(),
                           .weight = weight.const_data_ptr(),
                           .element = element_,
                           .rows = x.size(0),
                           .inner = x.size(1),
                           .outer = weight.size(0),
                           .out = out.data_ptr<float>()},
                          CurrentStream());
  return out;
}

// hidden += delta + bias, and its norm: of all rows, or of the `chosen` ones. `rest`, unless null,
// gets what the rounding of the norm leaves.
void CudaForward::Norm(Residual& residual, const at::Tensor& weight, at::Tensor& normed,
                       const at::Tensor* chosen, void* rest) const {
  tandem::cuda::RunAddNorm(
      {.hidden = residual.hidden.data_ptr<float>(),
       .delta = Floats(residual.delta),
       .bias = residual.bias == nullptr ? nullptr : Floats(*residual.bias),
       .weight = Floats(weight),
       .eps = static_cast<float>(config_.rms_norm_eps),
       .chosen = chosen == nullptr ? nullptr : chosen->const_data_ptr<int64_t>(),
       .rows = chosen == nullptr ? residual.hidden.size(0) : chosen->numel(),
       .width = config_.hidden_size,
       .normed = normed.data_ptr(),
       .element = element_,
       .rest = rest},
      CurrentStream());
}

at::Tensor CudaForward::Attend(int64_t index, const CudaLayer& layer, const at::Tensor& qkv,
                               const DeviceInputs& inputs) const {
  const int64_t n = qkv.size(0), heads = config_.num_heads, d = config_.head_dim;
  const at::Tensor keys = cache_[2 * index], values = cache_[2 * index + 1];
  const bool any_flash = std::any_of(inputs.ranges.begin(), inputs.ranges.end(),
                                     [](const DeviceRange& range) { return range.flash; });
  at::Tensor queries = at::empty({n, heads, d}, On(at::kFloat)), rounded;
  if (any_flash) rounded = at::empty({n, heads, d}, On(at::kBFloat16));
  tandem::cuda::RunRotateStore(
      {.qkv = Floats(qkv),
       .bias = Floats(layer.qkv.bias),
       .q_norm = Floats(layer.q_norm),
       .k_norm = Floats(layer.k_norm),
       .eps = static_cast<float>(config_.rms_norm_eps),
       .inverse_frequencies = Floats(frequencies_),
       .positions = inputs.positions.const_data_ptr<int32_t>(),
       .slots = inputs.slots.const_data_ptr<int64_t>(),
       .rows = n,
       .heads = heads,
       .kv_heads = config_.num_kv_heads,
       .head_dim = d,
       .queries = queries.data_ptr<float>(),
       .queries_bf16 = any_flash ? static_cast<uint16_t*>(rounded.data_ptr()) : nullptr,
       .keys = keys.data_ptr(),
       .values = values.data_ptr(),
       .kv = element_},
      CurrentStream());
  at::Tensor out = at::empty({n, heads * d}, On(type_));
  for (const DeviceRange& range : inputs.ranges) {
    if (range.flash) {
      AttendFlash(range, keys, values, rounded, out);
    } else {
      AttendPaged(range, inputs, keys, values, queries, out);
    }
  }
  return out;
}

// Paged attention of as many rows at once as there is scratch memory for.
void CudaForward::AttendPaged(const DeviceRange& range, const DeviceInputs& inputs,
                              const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& queries, at::Tensor& out) const {
  const int64_t heads = config_.num_heads, d = config_.head_dim;
  const int64_t each = tandem::cuda::AttentionScratch(1, heads, d, range.longest_key);
  const int64_t together =
      std::clamp<int64_t>(cuda::kAttentionScratchFloats / each, 1, range.count);
  at::Tensor scratch = at::empty({together * each}, On(at::kFloat));
  for (int64_t first = range.first; first < range.first + range.count; first += together) {
    tandem::cuda::RunPagedAttention(
        {.queries = Floats(queries) + first * heads * d,
         .keys = keys.const_data_ptr(),
         .values = values.const_data_ptr(),
         .kv = element_,
         .block_tables = inputs.block_tables.const_data_ptr<int32_t>(),
         .sequences = inputs.sequences.const_data_ptr<int32_t>() + first,
         .contexts = inputs.contexts.const_data_ptr<int32_t>() + first,
         .rows = std::min(together, range.first + range.count - first),
         .heads = heads,
         .kv_heads = config_.num_kv_heads,
         .head_dim = d,
         .max_blocks = inputs.max_blocks,
         .longest = range.longest_key,
         .scratch = scratch.data_ptr<float>(),
         .out = static_cast<char*>(out.data_ptr()) +
                first * heads * d * tandem::cuda::ElementBytes(element_),
         .element = element_},
        CurrentStream());
  }
}

// Flash attention of runs of prompt tokens over their gathered contexts.
void CudaForward::AttendFlash(const DeviceRange& range, const at::Tensor& keys,
                              const at::Tensor& values, const at::Tensor& queries,
                              at::Tensor& out) const {
  const int64_t tokens = range.slots.numel();
  at::Tensor context_keys = at::empty({tokens, config_.num_kv_heads, config_.head_dim}, On(type_));
  at::Tensor context_values = at::empty_like(context_keys);
  tandem::cuda::GatherKv(keys.const_data_ptr(), values.const_data_ptr(), element_,
                         range.slots.const_data_ptr<int64_t>(), tokens, config_.num_kv_heads,
                         config_.head_dim, context_keys.data_ptr(), context_values.data_ptr(),
                         CurrentStream());
  const at::Tensor attended = cuda::FlashAttention(
      {queries.narrow(0, range.first, range.count), context_keys, context_values, range.query_ends,
       range.key_ends, range.longest_query, range.longest_key});
  out.narrow(0, range.first, range.count).copy_(attended.reshape({range.count, -1}));
}

at::Tensor CudaForward::Logits(const CudaWeights& weights, Residual& residual,
                               const at::Tensor& rows) const {
  const int64_t n = rows.numel();
  const bool split = element_ == Element::kBf16;
  at::Tensor normed = at::empty({split ? 2 * n : n, config_.hidden_size}, On(type_));
  Norm(residual, weights.final_norm, normed, &rows,
       split ? normed.narrow(0, n, n).data_ptr() : nullptr);
  at::Tensor logits = Multiply(normed, weights.head);
  if (!split) return logits;
  logits.narrow(0, 0, n).add_(logits.narrow(0, n, n));
  return logits.narrow(0, 0, n);
}

void CudaForward::CopyBlocks(std::span<const BlockCopy> copies) {
  std::vector<int32_t> from, to;
  for (const BlockCopy& copy : copies) {
    from.push_back(copy.from);
    to.push_back(copy.to);
  }
  size_t first = 0;
  for (const size_t end : cuda::CopyRounds(copies)) {
    tandem::cuda::RunCopyBlocks({.cache = cache_.data_ptr(),
                                 .layers = cache_.size(0),
                                 .blocks = cache_.size(1),
                                 .block_bytes = cache_.stride(1) * cache_.element_size(),
                                 .from = from.data() + first,
                                 .to = to.data() + first,
                                 .count = static_cast<int64_t>(end - first)},
                                CurrentStream());
    first = end;
  }
}

}  // namespace tandem::rollout
