#include "rollout_server/engine/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/tensor/bf16_rounding.h"
#include "common/tensor/vector_exp.h"

#define TANDEM_INLINE __attribute__((always_inline)) inline

namespace tandem::rollout {
namespace {

typedef float Vec16 __attribute__((vector_size(64)));
typedef float Vec16Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t Half16 __attribute__((vector_size(32)));
typedef uint16_t Half16Unaligned __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t Word16 __attribute__((vector_size(64)));

TANDEM_INLINE Vec16 Load16(const float* p) { return *reinterpret_cast<const Vec16Unaligned*>(p); }

TANDEM_INLINE Vec16 Load16(const uint16_t* p) {
  const Half16 half = *reinterpret_cast<const Half16Unaligned*>(p);
  return std::bit_cast<Vec16>(__builtin_convertvector(half, Word16) << 16);
}

TANDEM_INLINE void Store16(float* p, Vec16 v) { *reinterpret_cast<Vec16Unaligned*>(p) = v; }

// Scores of kHeads query heads against the 16 keys of one block.
template <int kHeads, typename Kv>
TANDEM_INLINE void BlockScores(const float* queries, int64_t d, const Kv* keys, float* scores,
                               int64_t scores_stride) {
  Vec16 sums[kHeads] = {};
  for (int64_t i = 0; i < d; ++i) {
    const Vec16 key = Load16(keys + i * kKvBlockTokens);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) sums[h] += queries[h * d + i] * key;
  }
  for (int h = 0; h < kHeads; ++h) Store16(scores + h * scores_stride, sums[h]);
}

// Turns scores into exp(score - max); returns the sum.
TANDEM_INLINE float SoftmaxRow(float* scores, int64_t n) {
  float max = scores[0];
  for (int64_t i = 1; i < n; ++i) max = scores[i] > max ? scores[i] : max;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    scores[i] = VectorExp(scores[i] - max);
    sum += scores[i];
  }
  return sum;
}

// out[h] += sum over the block's tokens of p[h][t] * value[t], for 16 values of the head.
template <int kHeads, typename Kv>
TANDEM_INLINE void BlockValues(const float* p, int64_t p_stride, const Kv* values, int64_t padded_d,
                               int64_t tokens, Vec16* sums) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Vec16 value = Load16(values + t * padded_d);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) sums[h] += p[h * p_stride + t] * value;
  }
}

template <int kHeads, typename Kv>
TANDEM_INLINE void AttendGroup(const float* queries, int64_t d, int64_t padded_d,
                               const KvLayer<Kv>& layer, int64_t kv_head, const int32_t* blocks,
                               int64_t context, float* scratch, float* out) {
  const int64_t num_blocks = (context + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t stride = num_blocks * kKvBlockTokens;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const Kv* keys =
        layer.keys + blocks[b] * layer.key_block_stride + kv_head * layer.key_head_stride;
    BlockScores<kHeads>(queries, d, keys, scratch + b * kKvBlockTokens, stride);
  }
  float inverse[kHeads];
  for (int h = 0; h < kHeads; ++h) inverse[h] = 1.0f / SoftmaxRow(scratch + h * stride, context);
  for (int64_t column = 0; column < padded_d; column += 16) {
    Vec16 sums[kHeads] = {};
    for (int64_t b = 0; b < num_blocks; ++b) {
      const Kv* values = layer.values + blocks[b] * layer.value_block_stride +
                         kv_head * layer.value_head_stride + column;
      const int64_t tokens = std::min(kKvBlockTokens, context - b * kKvBlockTokens);
      BlockValues<kHeads>(scratch + b * kKvBlockTokens, stride, values, padded_d, tokens, sums);
    }
    const int64_t count = std::min<int64_t>(16, d - column);
    for (int h = 0; h < kHeads; ++h) {
      const Vec16 scaled = sums[h] * inverse[h];
      if (count == 16) {
        Store16(out + h * d + column, scaled);
      } else {
        for (int64_t i = 0; i < count; ++i) out[h * d + column + i] = scaled[i];
      }
    }
  }
}

template <typename Kv>
TANDEM_INLINE void AttendAll(const float* queries, int64_t num_queries, int64_t d, int64_t padded_d,
                             const KvLayer<Kv>& layer, int64_t kv_head, const int32_t* blocks,
                             int64_t context, float* scratch, float* out) {
  int64_t h = 0;
  for (; h + 4 <= num_queries; h += 4) {
    AttendGroup<4>(queries + h * d, d, padded_d, layer, kv_head, blocks, context, scratch,
                   out + h * d);
  }
  switch (num_queries - h) {
    case 3:
      AttendGroup<3>(queries + h * d, d, padded_d, layer, kv_head, blocks, context, scratch,
                     out + h * d);
      break;
    case 2:
      AttendGroup<2>(queries + h * d, d, padded_d, layer, kv_head, blocks, context, scratch,
                     out + h * d);
      break;
    case 1:
      AttendGroup<1>(queries + h * d, d, padded_d, layer, kv_head, blocks, context, scratch,
                     out + h * d);
      break;
    default:
      break;
  }
}

TANDEM_VECTOR_CLONES
void AttendFp32(const float* queries, int64_t num_queries, int64_t d, int64_t padded_d,
                const KvLayer<float>& layer, int64_t kv_head, const int32_t* blocks,
                int64_t context, float* scratch, float* out) {
  AttendAll(queries, num_queries, d, padded_d, layer, kv_head, blocks, context, scratch, out);
}

TANDEM_VECTOR_CLONES
void AttendBf16(const float* queries, int64_t num_queries, int64_t d, int64_t padded_d,
                const KvLayer<uint16_t>& layer, int64_t kv_head, const int32_t* blocks,
                int64_t context, float* scratch, float* out) {
  AttendAll(queries, num_queries, d, padded_d, layer, kv_head, blocks, context, scratch, out);
}

TANDEM_VECTOR_CLONES
float SumOfSquares(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

TANDEM_VECTOR_CLONES
void ScaleInto(const float* x, const float* weight, float scale, int64_t n, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = weight[i] * (x[i] * scale);
}

TANDEM_VECTOR_CLONES
void AddInto(float* x, const float* delta, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] += delta[i];
}

TANDEM_VECTOR_CLONES
void SwiGluRow(const float* gate, const float* up, int64_t n, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + VectorExp(-gate[i])) * up[i];
}

}  // namespace

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  ScaleInto(x, weight, 1.0f / std::sqrt(mean + eps), n, out);
}

void AddRmsNorm(float* x, const float* delta, const float* weight, int64_t n, float eps,
                float* out) {
  AddInto(x, delta, n);
  RmsNorm(x, weight, n, eps, out);
}

void Rotate(float* head, const float* cosines, const float* sines, int64_t d) {
  const int64_t half = d / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

void SwiGlu(const float* gate_up, int64_t n, float* out) {
  SwiGluRow(gate_up, gate_up + n, n, out);
}

template <typename Kv>
void WriteKv(const float* key, const float* value, int64_t d, int64_t padded_d, int64_t slot,
             Kv* keys, Kv* values) {
  Kv* row = values + slot * padded_d;
  for (int64_t i = 0; i < d; ++i) {
    if constexpr (std::is_same_v<Kv, float>) {
      keys[i * kKvBlockTokens + slot] = key[i];
      row[i] = value[i];
    } else {
      keys[i * kKvBlockTokens + slot] = NearestBf16(key[i]);
      row[i] = NearestBf16(value[i]);
    }
  }
  for (int64_t i = d; i < padded_d; ++i) row[i] = 0;
}

template void WriteKv<float>(const float*, const float*, int64_t, int64_t, int64_t, float*, float*);
template void WriteKv<uint16_t>(const float*, const float*, int64_t, int64_t, int64_t, uint16_t*,
                                uint16_t*);

template <>
void AttendHead<float>(const float* queries, int64_t num_queries, int64_t d, int64_t padded_d,
                       const KvLayer<float>& layer, int64_t kv_head, const int32_t* blocks,
                       int64_t context, float* scratch, float* out) {
  AttendFp32(queries, num_queries, d, padded_d, layer, kv_head, blocks, context, scratch, out);
}

template <>
void AttendHead<uint16_t>(const float* queries, int64_t num_queries, int64_t d, int64_t padded_d,
                          const KvLayer<uint16_t>& layer, int64_t kv_head, const int32_t* blocks,
                          int64_t context, float* scratch, float* out) {
  AttendBf16(queries, num_queries, d, padded_d, layer, kv_head, blocks, context, scratch, out);
}

}  // namespace tandem::rollout
