// The forward pass except for the linear layers, one row and head at a time: norm, rotary
// embedding, KV write, attention over KV blocks, gated linear units, soft caps. The engine always runs these kernels, and
// the trainer runs them in `exact` mode: the same functions give the same bits on both sides.
//
// Everything is fp32, and the order of every sum is fixed by the length of the row. A result
// therefore does not depend on what else is computed, on the thread, or on alignment. Free of
// LibTorch; pure.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/matrix/e4m3.h"
#include "common/model/model_config.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

// Tokens per KV block. Their scores fill one vector register of fp32.
inline constexpr int64_t kKvBlockTokens = 16;
// The head size of stored values is rounded up to a multiple of this.
inline constexpr int64_t kHeadPadding = 16;
constexpr int64_t PaddedHeadDim(int64_t head_dim) {
  return (head_dim + kHeadPadding - 1) / kHeadPadding * kHeadPadding;
}

// The stored types of keys and values: float, uint16_t (bf16 bits), int8_t and E4m3. The latter two
// have an fp32 scale for each key and each value (one head of one token), as QuantiseInt8 and
// QuantiseE4m3 make it.
template <typename Kv>
constexpr bool kHasKvScales = sizeof(Kv) == 1;

// The cache of one layer. Block b of KV head h starts at base + b * block_stride + h * head_stride,
// in elements. The keys of a block and head are transposed, [D, kKvBlockTokens]; the values are
// [kKvBlockTokens, padded D]. Scales are [kKvBlockTokens], heads and blocks one after another.
template <typename Kv>
struct KvLayer {
  Kv* keys = nullptr;
  Kv* values = nullptr;
  int64_t key_block_stride = 0, key_head_stride = 0;
  int64_t value_block_stride = 0, value_head_stride = 0;
  float* key_scales = nullptr;  // of types that have them
  float* value_scales = nullptr;
  int64_t num_heads = 0;

  Kv* KeysOf(int64_t block, int64_t head) const {
    return keys + block * key_block_stride + head * key_head_stride;
  }
  Kv* ValuesOf(int64_t block, int64_t head) const {
    return values + block * value_block_stride + head * value_head_stride;
  }
  int64_t ScalesAt(int64_t block, int64_t head) const {
    return (block * num_heads + head) * kKvBlockTokens;
  }
};

// Where a token's key and value stand in a layer.
struct KvPlace {
  int64_t block = 0, head = 0, slot = 0;
};

// Attention of consecutive tokens of one sequence, for the query heads of one KV head. Token t has
// position first_position + t and attends to positions 0 .. first_position + t, or to the last
// `window` of them; all are in the cache.
template <typename Kv>
struct AttentionTask {
  const float* queries = nullptr;  // head h of token t at t * query_stride + h * head_dim, scaled
  int64_t query_stride = 0;
  int64_t num_tokens = 0, num_heads = 0, head_dim = 0;
  int64_t first_position = 0;
  int64_t window = 0;  // 0: no bound
  float softcap = 0;   // scores s become softcap tanh(s / softcap); 0: they stay
  KvLayer<Kv> layer;
  int64_t kv_head = 0;
  const int32_t* blocks = nullptr;  // block table of the sequence
  float* out = nullptr;             // same layout as queries, at out_stride
  int64_t out_stride = 0;
  float* lse = nullptr;  // [num_tokens, num_heads] log sum e^score, at lse_stride; or null
  int64_t lse_stride = 0;
};

// Query rows (one head of one token each) that are computed together.
inline constexpr int64_t kAttentionRows = 6;

// Number of floats of scratch for an attention task whose contexts have at most `context` tokens.
constexpr int64_t AttentionScratch(int64_t context) {
  return kAttentionRows * ((context + kKvBlockTokens - 1) / kKvBlockTokens * kKvBlockTokens);
}

// Which elements of a head the rotary embedding turns, and in which pairs.
struct RotationForm {
  int64_t rotated = 0;       // even, at most the head's size; the rest stays
  bool interleaved = false;  // pairs (2i, 2i + 1); else (i, i + rotated / 2), as most weights have
};

// Rows of an adapter's inner values (LoRA: x A^T), rank values each, `stride` apart.
struct LowRankRows {
  const float* values = nullptr;
  int64_t rows = 0, rank = 0, stride = 0;
};
// Output features of an adapter that are computed together.
inline constexpr int64_t kLowRankColumns = 32;

struct ForwardKernels {
  // out = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), all [n]. Returns rstd. `out` may
  // be `x`.
  float (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);

  // Rotates the first `form.rotated` elements of a head [d] in place by angles given as cosines and
  // sines [form.rotated / 2], and multiplies the head by `scale`.
  void (*rotate)(float* head, const float* cosines, const float* sines, int64_t d,
                 const RotationForm& form, float scale);

  // out[i] = gate[i] * sigmoid(gate[i]) * up[i], [n].
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);

  // out[i] = g / 2 * (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) * up[i] with g = gate[i], [n].
  void (*geglu)(const float* gate, const float* up, int64_t n, float* out);

  // x[i] = cap * tanh(x[i] / cap), [n], in place.
  void (*soft_cap)(float* x, int64_t n, float cap);

  // out[r][i] += tile[r][i] for every row r, at the given strides, and i < n.
  void (*add_rows)(const float* tile, int64_t tile_stride, int64_t rows, int64_t n, float* out,
                   int64_t out_stride);

  // out[k] = sum over i of x[i] a[k][i]: x is [n], a is [rank, n].
  void (*project)(const float* x, const float* a, int64_t rank, int64_t n, float* out);

  // values[r][c] += sum over k, in order, of hidden[r][k] b[k][c]: b is [rank, kLowRankColumns].
  void (*add_low_rank)(const LowRankRows& hidden, const float* b, float* values, int64_t stride);

  // Stores one token's key and value, [d] each, at `place`, rounded to nearest.
  template <typename Kv>
  using WriteKvFunction = void(const float* key, const float* value, int64_t d,
                               const KvLayer<Kv>& layer, const KvPlace& place);
  WriteKvFunction<float>* write_kv_fp32;
  WriteKvFunction<uint16_t>* write_kv_bf16;
  WriteKvFunction<int8_t>* write_kv_int8;
  WriteKvFunction<E4m3>* write_kv_fp8;

  // softmax(q k) v for every token and head of the task. `scratch` has AttentionScratch floats.
  void (*attend_fp32)(const AttentionTask<float>& task, float* scratch);
  void (*attend_bf16)(const AttentionTask<uint16_t>& task, float* scratch);
  void (*attend_int8)(const AttentionTask<int8_t>& task, float* scratch);
  void (*attend_fp8)(const AttentionTask<E4m3>& task, float* scratch);

  auto GatedUnit(Activation activation) const {
    return activation == Activation::kSilu ? swiglu : geglu;
  }

  // The kernels of a stored type.
  template <typename Kv>
  auto WriteKv() const {
    if constexpr (std::is_same_v<Kv, float>) return write_kv_fp32;
    if constexpr (std::is_same_v<Kv, uint16_t>) return write_kv_bf16;
    if constexpr (std::is_same_v<Kv, int8_t>) return write_kv_int8;
    if constexpr (std::is_same_v<Kv, E4m3>) return write_kv_fp8;
  }
  template <typename Kv>
  auto Attend() const {
    if constexpr (std::is_same_v<Kv, float>) return attend_fp32;
    if constexpr (std::is_same_v<Kv, uint16_t>) return attend_bf16;
    if constexpr (std::is_same_v<Kv, int8_t>) return attend_int8;
    if constexpr (std::is_same_v<Kv, E4m3>) return attend_fp8;
  }
};

const ForwardKernels& ForwardKernelsFor(InstructionSet set);

}  // namespace tandem
