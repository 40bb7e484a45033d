#include "trainer/policy/cuda/exact_device_ops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/cuda/kernels.h"
#include "common/model/forward_kernels.h"
#include "trainer/policy/cuda/launch.h"

namespace tandem::trainer {
namespace {

namespace kernels = tandem::cuda;

constexpr int64_t kBlock = kKvBlockTokens;
constexpr int64_t kScratchFloats = int64_t{1} << 26;  // of paged attention, for many rows together

// A packed row's sequences in the engine's blocks: full blocks of a prompt are shared, and every
// completion has a copy of the prompt's last, partial one.
struct BlockLayout {
  std::vector<int64_t> rows;  // [blocks * kBlock] of the packed row; 0 where nothing is
  std::vector<std::vector<int32_t>> blocks;  // of each segment's sequence
  std::vector<int32_t> sequences, contexts;  // [T]
  int64_t longest = 0;                       // context
};

BlockLayout LayOut(std::span<const Segment> segments) {
  BlockLayout layout;
  for (const std::span<const Segment> part : SplitByPrompt(segments)) {
    const Segment& prompt = part.front();
    const int64_t prompt_size = prompt.end - prompt.begin, full = prompt_size / kBlock;
    const size_t of_prompt = layout.blocks.size();
    for (const Segment& segment : part) {
      const bool is_prompt = &segment == &prompt;
      const int64_t first = is_prompt ? 0 : prompt_size;  // position of the segment's first token
      const int64_t end = first + segment.end - segment.begin;
      std::vector<int32_t> blocks;
      if (!is_prompt) {
        const std::vector<int32_t>& shared = layout.blocks[of_prompt];
        blocks.assign(shared.begin(), shared.begin() + full);
      }
      for (auto p = static_cast<int64_t>(blocks.size()) * kBlock; p < end; ++p) {
        if (p % kBlock == 0) {
          blocks.push_back(static_cast<int32_t>(layout.rows.size() / kBlock));
          layout.rows.resize(layout.rows.size() + kBlock, 0);
        }
        layout.rows[static_cast<size_t>(blocks.back() * kBlock + p % kBlock)] =
            p < first ? prompt.begin + p : segment.begin + p - first;
      }
      for (int64_t p = first; p < end; ++p) {
        layout.sequences.push_back(static_cast<int32_t>(layout.blocks.size()));
        layout.contexts.push_back(static_cast<int32_t>(p + 1));
      }
      layout.longest = std::max(layout.longest, end);
      layout.blocks.push_back(std::move(blocks));
    }
  }
  return layout;
}

std::vector<int32_t> Table(const BlockLayout& layout, int64_t max_blocks) {
  std::vector<int32_t> table;
  for (std::vector<int32_t> blocks : layout.blocks) {
    blocks.resize(static_cast<size_t>(max_blocks), 0);
    table.insert(table.end(), blocks.begin(), blocks.end());
  }
  return table;
}

struct ExactAttentionPlan : DeviceAttentionPlan {
  using DeviceAttentionPlan::DeviceAttentionPlan;

  int64_t max_blocks = 0, longest = 0;
  at::Tensor rows;                        // [blocks * kBlock]
  at::Tensor table, sequences, contexts;  // [segments, max_blocks], [T], [T] int32
};

}  // namespace

// x [N, I] of the weight's dtype -> [N, O] fp32.
at::Tensor ExactDeviceOps::Product(const at::Tensor& x, const at::Tensor& weight) const {
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, On(at::kFloat));
  kernels::RunMatmul({.x = x.const_data_ptr(),
                      .weight = weight.const_data_ptr(),
                      .element = ElementOf(weight),
                      .rows = x.size(0),
                      .inner = x.size(1),
                      .outer = weight.size(0),
                      .out = out.data_ptr<float>()},
                     CurrentStream());
  CheckLaunch("linear layers");
  return out;
}

at::Tensor ExactDeviceOps::Linear(const LinearLayer& layer, const at::Tensor& x) const {
  at::Tensor y = Product(x, layer.weight);
  return layer.bias.defined() ? y.add_(layer.bias) : y;
}

// rstd is for the backward pass alone, and need not be the kernel's.
Normed ExactDeviceOps::RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const {
  const int64_t width = layer.weight.size(0), rows = x.numel() / width;
  Normed result{at::empty(x.sizes(), On(layer.in_fp32 ? at::kFloat : type())),
                x.view({rows, width}).square().mean(1).add_(eps).rsqrt_()};
  kernels::RunAddNorm(
      {.hidden = const_cast<float*>(x.const_data_ptr<float>()),  // as no delta is given
       .weight = layer.weight.const_data_ptr<float>(),
       .eps = static_cast<float>(eps),
       .rows = rows,
       .width = width,
       .normed = result.value.data_ptr(),
       .element = ElementOf(result.value)},
      CurrentStream());
  CheckLaunch("norm");
  return result;
}

RotaryTable ExactDeviceOps::MakeRotaryTable(std::span<const int32_t> positions,
                                            const RotaryEmbedding& embedding,
                                            bool interleaved) const {
  RotaryTable table = DeviceLayerOps::MakeRotaryTable(positions, embedding, interleaved);
  const std::span<const float> frequencies = embedding.inverse_frequencies;
  table.positions = Upload(positions, at::kInt);
  table.inverse_frequencies = Upload(frequencies, at::kFloat);
  return table;
}

RotatedHeads ExactDeviceOps::NormAndRotate(const NormLayer& norm, double eps, int64_t num_heads,
                                           const RotaryTable& table, at::Tensor projected) const {
  const int64_t head_dim = 2 * table.inverse_frequencies.numel();
  RotatedHeads heads{at::empty_like(projected), {}};
  if (norm.weight.defined()) {
    heads.rstd = projected.view({-1, head_dim}).square().mean(1).add_(eps).rsqrt_();
  }
  kernels::RunRotateHeads(
      {.in = projected.const_data_ptr<float>(),
       .norm = norm.weight.defined() ? norm.weight.const_data_ptr<float>() : nullptr,
       .eps = static_cast<float>(eps),
       .inverse_frequencies = table.inverse_frequencies.const_data_ptr<float>(),
       .positions = table.positions.const_data_ptr<int32_t>(),
       .rows = projected.size(0),
       .heads = num_heads,
       .head_dim = head_dim,
       .out = heads.value.data_ptr<float>()},
      CurrentStream());
  CheckLaunch("rotary");
  return heads;
}

// The activation is SiLU: other models are refused (policy.cc).
at::Tensor ExactDeviceOps::GatedUnit(Activation, const at::Tensor& gate,
                                     const at::Tensor& up) const {
  const at::Tensor both = at::cat({gate, up}, 1);
  at::Tensor out = at::empty(gate.sizes(), On(type()));
  kernels::SwiGlu(both.const_data_ptr<float>(), nullptr, gate.size(0), gate.size(1), out.data_ptr(),
                  ElementOf(out), CurrentStream());
  CheckLaunch("SwiGLU");
  return out;
}

std::shared_ptr<const AttentionPlan> ExactDeviceOps::PlanAttention(
    std::span<const Segment> segments) const {
  const BlockLayout layout = LayOut(segments);
  const auto upload = [&](const std::vector<int32_t>& x) {
    return Upload(std::span<const int32_t>(x), at::kInt);
  };
  const auto plan = std::make_shared<ExactAttentionPlan>(segments, device());
  plan->longest = layout.longest;
  plan->max_blocks = (layout.longest + kBlock - 1) / kBlock;
  plan->rows = Upload(std::span<const int64_t>(layout.rows), at::kLong);
  plan->table = upload(Table(layout, plan->max_blocks));
  plan->sequences = upload(layout.sequences);
  plan->contexts = upload(layout.contexts);
  return plan;
}

Attention ExactDeviceOps::Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                                 const AttentionPlan& row, const AttentionForm& form) const {
  const auto& plan = static_cast<const ExactAttentionPlan&>(row);
  const int64_t tokens = q.size(0), d = form.head_dim;
  const auto in_blocks = [&](at::Tensor& x) {  // [blocks, Hkv, kBlock, D], rounded
    x = x.to(type());
    return x.view({tokens, form.num_kv_heads, d})
        .index_select(0, plan.rows)
        .view({-1, kBlock, form.num_kv_heads, d})
        .transpose(1, 2)
        .contiguous();
  };
  const at::Tensor keys = in_blocks(k), values = in_blocks(v);
  const at::Tensor queries = q * form.scale;
  Attention result{at::empty(q.sizes(), On(type())), {}};
  const int64_t each = kernels::AttentionScratch(1, form.num_heads, d, plan.longest);
  const int64_t together = std::clamp<int64_t>(kScratchFloats / each, 1, tokens);
  at::Tensor scratch = at::empty({together * each}, On(at::kFloat));
  for (int64_t first = 0; first < tokens; first += together) {
    const int64_t count = std::min(together, tokens - first);
    kernels::RunPagedAttention(
        {.queries = queries.const_data_ptr<float>() + first * form.num_heads * d,
         .keys = keys.const_data_ptr(),
         .values = values.const_data_ptr(),
         .kv = ElementOf(keys),
         .block_tables = plan.table.const_data_ptr<int32_t>(),
         .sequences = plan.sequences.const_data_ptr<int32_t>() + first,
         .contexts = plan.contexts.const_data_ptr<int32_t>() + first,
         .rows = count,
         .heads = form.num_heads,
         .kv_heads = form.num_kv_heads,
         .head_dim = d,
         .max_blocks = plan.max_blocks,
         .longest = plan.longest,
         .scratch = scratch.data_ptr<float>(),
         .out = result.out.narrow(0, first, count).data_ptr(),
         .element = ElementOf(result.out)},
        CurrentStream());
  }
  CheckLaunch("paged attention");
  return result;
}

AttentionGrads ExactDeviceOps::AttendBackward(const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const Attention&,
                                              const at::Tensor& out_grad, const AttentionPlan& plan,
                                              const AttentionForm& form) const {
  const at::Tensor queries = q.to(type()), grad = out_grad.to(type());
  at::Tensor keys = k, values = v;
  const Attention again = DeviceLayerOps::Attend(queries, keys, values, plan, form);
  return DeviceLayerOps::AttendBackward(queries, keys, values, again, grad, plan, form);
}

at::Tensor ExactDeviceOps::Logits(const LinearLayer& head, const at::Tensor& hidden) const {
  if (head.weight.scalar_type() == at::kFloat) return Product(hidden, head.weight);
  const at::Tensor first = hidden.to(at::kBFloat16);
  const at::Tensor rest = (hidden - first).to(at::kBFloat16);
  return Product(first, head.weight).add_(Product(rest, head.weight));
}

void ExactDeviceOps::RunLogprobs(const cuda::TokenLogprobs& task) const {
  cuda::RunExactLogprobs(task, CurrentStream());
}

absl::StatusOr<std::unique_ptr<LayerOps>> MakeDeviceLayerOps(ComputeDType dtype, bool exact) {
  if (exact) return std::make_unique<ExactDeviceOps>(CurrentDevice(), dtype);
  return std::make_unique<DeviceLayerOps>(CurrentDevice(), dtype);
}

}  // namespace tandem::trainer
