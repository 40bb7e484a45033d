// The forward pass around the linear layers, row by row and head by head: norm, rotary embedding,
// KV write, attention over blocks of KV, SwiGLU. The engine runs it always, the trainer in `exact`
// mode: the same functions on both sides, so the same bits.
//
// All in fp32, every sum in an order fixed by the row's own length: a result does not depend on
// what else is computed, on the thread, or on where in memory a row lies. Free of LibTorch; pure.
#ifndef TANDEM_COMMON_MODEL_FORWARD_KERNELS_H_
#define TANDEM_COMMON_MODEL_FORWARD_KERNELS_H_

#include <cstdint>

#include "common/tensor/instruction_set.h"

namespace tandem {

// Tokens of a KV block; one vector register of fp32 scores.
inline constexpr int64_t kKvBlockTokens = 16;
// Values of a head are stored with its size rounded up to this many.
inline constexpr int64_t kHeadPadding = 16;
constexpr int64_t PaddedHeadDim(int64_t head_dim) {
  return (head_dim + kHeadPadding - 1) / kHeadPadding * kHeadPadding;
}

// Where the cache of one layer lies: block b, KV head h starts at base + b * block_stride +
// h * head_stride (in elements). Keys of a block and head are transposed, [D, kKvBlockTokens];
// values are [kKvBlockTokens, padded D]. `Kv` is float or uint16_t (bf16 bits).
template <typename Kv>
struct KvLayer {
  Kv* keys = nullptr;
  Kv* values = nullptr;
  int64_t key_block_stride = 0, key_head_stride = 0;
  int64_t value_block_stride = 0, value_head_stride = 0;

  Kv* KeysOf(int64_t block, int64_t head) const {
    return keys + block * key_block_stride + head * key_head_stride;
  }
  Kv* ValuesOf(int64_t block, int64_t head) const {
    return values + block * value_block_stride + head * value_head_stride;
  }
};

// Some neighbouring tokens of one sequence, looked at by the query heads of one KV head. Token t
// has position first_position + t and attends to positions 0 .. first_position + t, which are in
// the cache.
template <typename Kv>
struct AttentionTask {
  const float* queries = nullptr;  // head h of token t at t * query_stride + h * head_dim, scaled
  int64_t query_stride = 0;
  int64_t num_tokens = 0, num_heads = 0, head_dim = 0;
  int64_t first_position = 0;
  KvLayer<Kv> layer;
  int64_t kv_head = 0;
  const int32_t* blocks = nullptr;  // block table of the sequence
  float* out = nullptr;             // as queries, at out_stride
  int64_t out_stride = 0;
  float* lse =
      nullptr;  // log of the sum of e^score, [num_tokens, num_heads] at lse_stride; or null
  int64_t lse_stride = 0;
};

// Query rows (a token's head each) that go through the cache together.
inline constexpr int64_t kAttentionRows = 6;

// Floats of scratch an attention task over contexts of at most `context` tokens needs.
constexpr int64_t AttentionScratch(int64_t context) {
  return kAttentionRows * ((context + kKvBlockTokens - 1) / kKvBlockTokens * kKvBlockTokens);
}

struct ForwardKernels {
  // out = x rstd weight with rstd = 1 / sqrt(mean(x^2) + eps), all [n]; returns rstd. out may be x.
  float (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);

  // Rotates a head [d] in place by the angles whose cosines and sines are [d / 2], then multiplies
  // by `scale`: element i pairs with i + d / 2 (the layout of Hugging Face weights).
  void (*rotate)(float* head, const float* cosines, const float* sines, int64_t d, float scale);

  // out[i] = gate[i] sigmoid(gate[i]) up[i], [n].
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);

  // out[r][i] += tile[r][i] for rows r at their strides and i < n.
  void (*add_rows)(const float* tile, int64_t tile_stride, int64_t rows, int64_t n, float* out,
                   int64_t out_stride);

  // Stores one token's key and value, [d] each, at `slot` of a block and head (cast to nearest).
  void (*write_kv_fp32)(const float* key, const float* value, int64_t d, int64_t slot, float* keys,
                        float* values);
  void (*write_kv_bf16)(const float* key, const float* value, int64_t d, int64_t slot,
                        uint16_t* keys, uint16_t* values);

  // softmax(q k) v of every token and head of the task. `scratch`: AttentionScratch floats.
  void (*attend_fp32)(const AttentionTask<float>& task, float* scratch);
  void (*attend_bf16)(const AttentionTask<uint16_t>& task, float* scratch);
};

const ForwardKernels& ForwardKernelsFor(InstructionSet set);

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_FORWARD_KERNELS_H_
