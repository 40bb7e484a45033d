// CPU kernels of the engine around the linear layers: norm, rotary, KV write, attention over
// blocks, SwiGLU. Each works on one row or one head, in fp32, in a fixed order, so that a result
// does not depend on what else is in the batch; ModelRunner spreads rows over threads. Free of
// LibTorch; pure.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_KERNELS_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_KERNELS_H_

#include <cstdint>

namespace tandem::rollout {

// Tokens of a KV block; one vector register of fp32 scores.
inline constexpr int64_t kKvBlockTokens = 16;
// Heads are stored with their size rounded up to this many values.
inline constexpr int64_t kHeadPadding = 16;
// Query heads that may share one KV head.
inline constexpr int64_t kMaxHeadsPerKvHead = 64;

// out = x / sqrt(mean(x^2) + eps) * weight, all [n].
void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out);

// x += delta, then out = RmsNorm(x); all [n].
void AddRmsNorm(float* x, const float* delta, const float* weight, int64_t n, float eps,
                float* out);

// Rotates a head [d] in place by the angles whose cosines and sines are [d / 2]: element i pairs
// with i + d / 2 (the layout of Hugging Face weights).
void Rotate(float* head, const float* cosines, const float* sines, int64_t d);

// out[i] = silu(gate_up[i]) * gate_up[n + i], [n].
void SwiGlu(const float* gate_up, int64_t n, float* out);

// One KV head of one block: keys are stored transposed, [d, kKvBlockTokens], values as
// [kKvBlockTokens, padded d]. `Kv` is float or uint16_t (bf16 bits).
template <typename Kv>
void WriteKv(const float* key, const float* value, int64_t d, int64_t padded_d, int64_t slot,
             Kv* keys, Kv* values);

// Where the cache of one layer lies: block b, KV head h starts at base + b * block_stride +
// h * head_stride (in elements).
template <typename Kv>
struct KvLayer {
  const Kv* keys;
  const Kv* values;
  int64_t key_block_stride, key_head_stride;
  int64_t value_block_stride, value_head_stride;
};

// Attention of the `num_queries` query heads of one token over one KV head.
//   queries  [num_queries, d], already scaled by 1/sqrt(d)
//   blocks   block table; `context` tokens count
//   scratch  [num_queries * (context rounded up to 16)] floats
//   out      [num_queries, d]
template <typename Kv>
void AttendHead(const float* queries, int64_t num_queries, int64_t d, int64_t padded_d,
                const KvLayer<Kv>& layer, int64_t kv_head, const int32_t* blocks, int64_t context,
                float* scratch, float* out);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_KERNELS_H_
