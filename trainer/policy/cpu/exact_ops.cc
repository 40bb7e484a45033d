#include "trainer/policy/cpu/exact_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/model/forward_kernels.h"
#include "common/tensor/instruction_set.h"
#include "trainer/policy/cpu/attention_kernel.h"
#include "trainer/policy/weights/fake_quantised.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kRowBlock = 48;       // rows multiplied by one tile of weights at a time
constexpr int64_t kTokensTogether = 8;  // of a segment, attended at once
constexpr int64_t kBlock = kKvBlockTokens;

template <typename T>
PackedMatrix PackRows(const at::Tensor& weight, const WeightFormat& format) {
  const auto* data = static_cast<const T*>(weight.const_data_ptr());
  std::vector<const T*> rows;
  for (int64_t o = 0; o < weight.size(0); ++o) rows.push_back(data + o * weight.size(1));
  return PackedMatrix(std::span<const T* const>(rows), weight.size(1), format);
}

// Keys and values of one prompt with its completions for one key-value head, in blocks.
template <typename Kv>
class PartCache {
 public:
  explicit PartCache(int64_t head_dim) : head_dim_(head_dim), padded_(PaddedHeadDim(head_dim)) {}

  void Clear() { num_blocks_ = 0; }
  int32_t Add() {
    ++num_blocks_;
    const size_t keys = static_cast<size_t>(num_blocks_ * head_dim_ * kBlock);
    const size_t values = static_cast<size_t>(num_blocks_ * padded_ * kBlock);
    if (keys_.size() < keys) keys_.resize(2 * keys);
    if (values_.size() < values) values_.resize(2 * values);
    const size_t scales = kHasKvScales<Kv> ? static_cast<size_t>(num_blocks_ * kBlock) : 0;
    if (key_scales_.size() < scales) key_scales_.resize(2 * scales);
    if (value_scales_.size() < scales) value_scales_.resize(2 * scales);
    return static_cast<int32_t>(num_blocks_ - 1);
  }
  KvLayer<Kv> layer() {
    KvLayer<Kv> layer;
    layer.keys = keys_.data();
    layer.values = values_.data();
    layer.key_block_stride = head_dim_ * kBlock;
    layer.value_block_stride = padded_ * kBlock;
    layer.key_scales = key_scales_.data();
    layer.value_scales = value_scales_.data();
    layer.num_heads = 1;
    return layer;
  }

 private:
  const int64_t head_dim_, padded_;
  int64_t num_blocks_ = 0;
  std::vector<Kv> keys_, values_;
  std::vector<float> key_scales_, value_scales_;
};

struct AttentionInputs {
  const float* q = nullptr;
  float *k = nullptr, *v = nullptr;
  float *out = nullptr, *lse = nullptr;
  AttentionForm form;
};

// Attends for one prompt with its completions and one key-value head, on the layout of the engine:
// completions share the full blocks of the prompt, and each has a copy of the prompt's last,
// partial block, which its own tokens go on to fill.
template <typename Kv>
void AttendPart(std::span<const Segment> part, int64_t kv_head, const AttentionInputs& in,
                PartCache<Kv>& cache) {
  const ForwardKernels& kernels = ForwardKernelsFor(ActiveInstructionSet());
  const int64_t d = in.form.head_dim, group = in.form.num_heads / in.form.num_kv_heads;
  const int64_t q_stride = in.form.num_heads * d, kv_stride = in.form.num_kv_heads * d;
  const auto store = [&](int64_t row, int32_t block, int64_t slot) {
    const KvLayer<Kv> layer = cache.layer();
    const float *key = in.k + row * kv_stride + kv_head * d,
                *value = in.v + row * kv_stride + kv_head * d;
    kernels.WriteKv<Kv>()(key, value, d, layer, {block, 0, slot});
  };
  std::vector<float> queries(kTokensTogether * group * d), scratch;
  const Segment& prompt = part.front();
  const int64_t prompt_size = prompt.end - prompt.begin, full = prompt_size / kBlock;
  std::vector<int32_t> prompt_blocks;
  cache.Clear();
  for (const Segment& segment : part) {
    const bool is_prompt = &segment == &prompt;
    const int64_t first_position = is_prompt ? 0 : prompt_size;
    const int64_t end_position = first_position + segment.end - segment.begin;
    std::vector<int32_t> blocks;
    if (!is_prompt) blocks.assign(prompt_blocks.begin(), prompt_blocks.begin() + full);
    while (static_cast<int64_t>(blocks.size()) * kBlock < end_position)
      blocks.push_back(cache.Add());
    for (int64_t p = is_prompt ? 0 : full * kBlock; p < end_position; ++p) {
      const int64_t row =
          p < first_position ? prompt.begin + p : segment.begin + p - first_position;
      store(row, blocks[p / kBlock], p % kBlock);
    }
    if (is_prompt) prompt_blocks = blocks;

    scratch.resize(std::max<size_t>(scratch.size(), AttentionScratch(end_position)));
    for (int64_t p = first_position; p < end_position; p += kTokensTogether) {
      const int64_t row = segment.begin + p - first_position;
      AttentionTask<Kv> task;
      task.num_tokens = std::min(kTokensTogether, end_position - p);
      for (int64_t t = 0; t < task.num_tokens; ++t) {
        const float* from = in.q + (row + t) * q_stride + kv_head * group * d;
        for (int64_t i = 0; i < group * d; ++i)
          queries[t * group * d + i] = from[i] * in.form.scale;
      }
      task.queries = queries.data();
      task.query_stride = group * d;
      task.num_heads = group;
      task.head_dim = d;
      task.first_position = p;
      task.window = in.form.window;
      task.softcap = in.form.softcap;
      task.layer = cache.layer();
      task.blocks = blocks.data();
      task.out = in.out + row * q_stride + kv_head * group * d;
      task.out_stride = q_stride;
      task.lse = in.lse + row * in.form.num_heads + kv_head * group;
      task.lse_stride = in.form.num_heads;
      kernels.Attend<Kv>()(task, scratch.data());
    }
  }
}

}  // namespace

PackedMatrix PackWeight(const at::Tensor& weight, const WeightFormat& format) {
  const at::Tensor dense = weight.contiguous();
  return dense.scalar_type() == at::kBFloat16 ? PackRows<uint16_t>(dense, format)
                                              : PackRows<float>(dense, format);
}

namespace {

// Rows as an operand, with the memory that it points to.
struct StoredRows {
  at::Tensor data, scales, sums;
  Operand operand;
};

StoredRows StoreFloats(const at::Tensor& x, bool round) {
  const InstructionSet set = ActiveInstructionSet();
  const int64_t rows = x.size(0), depth = x.size(1);
  const OperandType type = round ? RoundedOperandType(set) : OperandType::kFp32;
  StoredRows stored;
  stored.data = at::empty({rows, depth}, type == OperandType::kBf16 ? at::kBFloat16 : at::kFloat);
  const float* from = x.const_data_ptr<float>();
  char* to = static_cast<char*>(stored.data.data_ptr());
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      StoreOperand(set, from + r * depth, depth, round, type, to + r * depth * OperandBytes(type));
    }
  });
  stored.operand = {type, to, depth};
  return stored;
}

// `parts` rows of integers for each of x: one of int8, or two of 16 bits.
StoredRows StoreIntegers(const at::Tensor& x, int64_t parts) {
  const InstructionSet set = ActiveInstructionSet();
  const int64_t rows = x.size(0), depth = x.size(1), stride = Int8Stride(depth);
  StoredRows stored;
  stored.data = at::empty({parts * rows, stride}, at::kChar);
  stored.scales = at::empty({parts * rows}, at::kFloat);
  stored.sums = at::empty({parts * rows, Int8Sums(depth)}, at::kInt);
  const float* from = x.const_data_ptr<float>();
  int8_t* to = stored.data.data_ptr<int8_t>();
  float* scales = stored.scales.data_ptr<float>();
  int32_t* sums = stored.sums.data_ptr<int32_t>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = parts * r;
      if (parts == 1) {
        scales[at] = StoreInt8Operand(set, from + r * depth, depth, to + at * stride,
                                      sums + at * Int8Sums(depth));
      } else {
        StoreInt16Operand(from + r * depth, depth, to + at * stride, scales + at,
                          sums + at * Int8Sums(depth));
      }
    }
  });
  stored.operand = {OperandType::kInt8, to, stride, scales, sums};
  return stored;
}

}  // namespace

at::Tensor ExactProduct(const PackedMatrix& weight, const at::Tensor& x, ExactInputs inputs) {
  constexpr int64_t kTile = PackedMatrix::kTileColumns;
  const InstructionSet set = ActiveInstructionSet();
  const bool integers = inputs == ExactInputs::kInt8 || inputs == ExactInputs::kInt16;
  const int64_t parts = inputs == ExactInputs::kInt16 ? 2 : 1;
  const StoredRows stored =
      integers ? StoreIntegers(x, parts) : StoreFloats(x, inputs == ExactInputs::kBf16);
  const int64_t rows = parts * x.size(0), depth = weight.depth(), columns = weight.columns();
  at::Tensor out = at::empty({x.size(0), columns}, at::kFloat);
  float* to = out.data_ptr<float>();
  at::parallel_for(0, weight.num_tiles(), 1, [&](int64_t begin, int64_t end) {
    float values[kRowBlock * kTile];
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile, width = std::min(kTile, columns - first);
      for (int64_t row = 0; row < rows; row += kRowBlock) {
        const int64_t count = std::min(kRowBlock, rows - row);
        weight.MultiplyTile(set, tile, stored.operand.From(row, depth), count, values, kTile);
        for (int64_t r = 0; r < count; r += parts) {
          float* out_row = to + (row + r) / parts * columns + first;
          const float* high = values + r * kTile;
          if (parts == 1) {
            std::copy_n(high, width, out_row);
          } else {
            for (int64_t c = 0; c < width; ++c) out_row[c] = high[c] + high[kTile + c];
          }
        }
      }
    }
  });
  return out;
}

namespace {

template <typename Kv>
void AttendParts(std::span<const Segment> segments, int64_t num_kv_heads,
                 const AttentionInputs& in) {
  const auto parts = SplitByPrompt(segments);
  const int64_t tasks = static_cast<int64_t>(parts.size()) * num_kv_heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    PartCache<Kv> cache(in.form.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      AttendPart(parts[i / num_kv_heads], i % num_kv_heads, in, cache);
    }
  });
}

// Heads [T, H * D] become what a cache of this scheme holds of them, as floats.
at::Tensor FakeQuantisedHeads(const at::Tensor& heads, int64_t head_dim, WeightScheme scheme) {
  return FakeQuantised(heads.view({-1, head_dim}), {scheme}).view(heads.sizes());
}

}  // namespace

Attention ExactAttention(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                         std::span<const Segment> segments, const AttentionForm& form, ExactKv kv) {
  Attention result{at::empty_like(q), at::empty({q.size(0), form.num_heads}, q.options())};
  const AttentionInputs in{q.data_ptr<float>(),          k.data_ptr<float>(),
                           v.data_ptr<float>(),          result.out.data_ptr<float>(),
                           result.lse.data_ptr<float>(), form};
  switch (kv) {
    case ExactKv::kFp32:
      AttendParts<float>(segments, form.num_kv_heads, in);
      break;
    case ExactKv::kBf16:
      AttendParts<uint16_t>(segments, form.num_kv_heads, in);
      k = k.to(at::kBFloat16).to(at::kFloat);
      v = v.to(at::kBFloat16).to(at::kFloat);
      break;
    case ExactKv::kInt8:
      AttendParts<int8_t>(segments, form.num_kv_heads, in);
      k = FakeQuantisedHeads(k, form.head_dim, WeightScheme::kInt8);
      v = FakeQuantisedHeads(v, form.head_dim, WeightScheme::kInt8);
      break;
    case ExactKv::kFp8E4m3:
      AttendParts<E4m3>(segments, form.num_kv_heads, in);
      k = FakeQuantisedHeads(k, form.head_dim, WeightScheme::kFp8E4m3);
      v = FakeQuantisedHeads(v, form.head_dim, WeightScheme::kFp8E4m3);
      break;
  }
  return result;
}

}  // namespace tandem::trainer
