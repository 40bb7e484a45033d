#include "trainer/policy/cpu/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/policy/cpu/vector_math.h"

namespace tandem::trainer {
namespace {

// The idea: a completion attends to its prompt (the prefix) and to itself, so the scores of a query
// are two rows: one over the prefix, without a mask, and one over the own segment, causal. The keys
// of the prompt are transposed once and serve all its completions and all query heads of the group.
// Queries are taken in blocks, so the score matrix is [kQueryBlock, keys] and stays in the cache,
// while every product is a small dense matrix product.
//
// The forward pass stores lse_i, the log-sum-exp of row i, and no probabilities; the backward pass
// computes P again from it, as FlashAttention does (Dao et al., NeurIPS 2022):
//
//   dV = P^T dO,  dP = dO V^T,  dS = scale P (dP - rowsum(O dO)),  dQ = dS K,  dK = dS^T Q
//
// What holds: one call works on its own rows and its own key-value head, and sums in a fixed order,
// so the result does not depend on threads. Scores behind the causal border are set to 0 after the
// softmax, so that products may run over whole blocks.

constexpr int64_t kQueryBlock = 48;  // queries in a block: bounds the score matrix

int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

// rows [n, D] with row stride `stride` -> columns [D, RoundUp16(n)], zeros behind n.
void Transpose(const float* rows, int64_t stride, int64_t n, int64_t head_dim,
               std::vector<float>& columns) {
  const int64_t padded = RoundUp16(n);
  columns.assign(static_cast<size_t>(padded * head_dim), 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t d = 0; d < head_dim; ++d) columns[d * padded + j] = rows[j * stride + d];
  }
}

// Turns scaled scores of one query into probabilities; returns lse. Entries at `count` and behind
// become 0.
TANDEM_VECTOR_CLONES
float SoftmaxRow(float* prefix, int64_t num_prefix, float* own, int64_t num_own, float scale) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < num_prefix; ++j) largest = std::max(largest, prefix[j]);
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < num_own; ++j) largest = std::max(largest, own[j]);
  const float shift = largest * scale;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < num_prefix; ++j) sum += prefix[j] = VectorExp(prefix[j] * scale - shift);
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < num_own; ++j) sum += own[j] = VectorExp(own[j] * scale - shift);
  const float inverse = 1.0f / sum;
#pragma omp simd
  for (int64_t j = 0; j < num_prefix; ++j) prefix[j] *= inverse;
#pragma omp simd
  for (int64_t j = 0; j < num_own; ++j) own[j] *= inverse;
  return shift + std::log(sum);
}

TANDEM_VECTOR_CLONES
void ProbabilitiesFromLse(float* scores, int64_t count, float scale, float lse) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) scores[j] = VectorExp(scores[j] * scale - lse);
}

// dP -> dS in place: dS = P (dP - sum_d o dO) scale.
TANDEM_VECTOR_CLONES
void ScoreGradient(const float* p, float* dp, int64_t count, float out_dot, float scale) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) dp[j] = p[j] * (dp[j] - out_dot) * scale;
}

TANDEM_VECTOR_CLONES
float Dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
  return sum;
}

// The keys that a block of queries attends to: consecutive rows, and their transposed copies.
struct KeyRange {
  int64_t begin = 0;                // row of the first key
  int64_t count = 0;                // keys in use
  int64_t padded = 0;               // row stride of the transposed copies
  const float* keys_t = nullptr;    // [D, padded]
  const float* values_t = nullptr;  // [D, padded]; backward only
};

struct Scratch {
  std::vector<float> prefix_keys_t, own_keys_t, prefix_values_t, own_values_t;
  std::vector<float> p_prefix, p_own, dp_prefix, dp_own;  // [kQueryBlock, padded]
};

float* Reserve(std::vector<float>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(static_cast<size_t>(size));
  return buffer.data();
}

// Runs `body(query_begin, query_end, prefix, own)` over blocks of queries of every segment; `own`
// holds keys up to the block's end.
template <typename Body>
void ForEachQueryBlock(std::span<const Segment> part, int64_t kv_head, const AttentionShape& shape,
                       const float* k, const float* v, bool with_values, Scratch& scratch,
                       const Body& body) {
  const int64_t stride = shape.num_kv_heads * shape.head_dim;
  const int64_t offset = kv_head * shape.head_dim;
  KeyRange prefix;
  for (const Segment& segment : part) {
    const int64_t length = segment.end - segment.begin;
    Transpose(k + segment.begin * stride + offset, stride, length, shape.head_dim,
              scratch.own_keys_t);
    if (with_values) {
      Transpose(v + segment.begin * stride + offset, stride, length, shape.head_dim,
                scratch.own_values_t);
    }
    for (int64_t begin = segment.begin; begin < segment.end; begin += kQueryBlock) {
      const int64_t end = std::min(begin + kQueryBlock, segment.end);
      const KeyRange own{segment.begin, end - segment.begin, RoundUp16(length),
                         scratch.own_keys_t.data(), scratch.own_values_t.data()};
      body(begin, end, prefix, own);
    }
    if (&segment == &part.front()) {  // the prompt: prefix of all that follow
      std::swap(scratch.prefix_keys_t, scratch.own_keys_t);
      std::swap(scratch.prefix_values_t, scratch.own_values_t);
      prefix = {segment.begin, length, RoundUp16(length), scratch.prefix_keys_t.data(),
                scratch.prefix_values_t.data()};
    }
  }
}

// [block, range.padded] = rows of q (or dO) times the transposed keys (or values).
void TimesTransposed(const float* rows, int64_t row_stride, int64_t num_rows, int64_t head_dim,
                     const KeyRange& range, const float* transposed, float* result) {
  if (range.count == 0) return;
  SmallMatmul(num_rows, RoundUp16(range.count), head_dim, rows, row_stride, 1, transposed,
              range.padded, result, range.padded, false);
}

}  // namespace

void AttendForward(std::span<const Segment> part, int64_t kv_head, const AttentionShape& shape,
                   const AttentionForwardArgs& args) {
  Scratch scratch;
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  const int64_t q_stride = shape.num_heads * shape.head_dim;
  const int64_t kv_stride = shape.num_kv_heads * shape.head_dim;
  const float* values = args.v + kv_head * shape.head_dim;
  const auto attend = [&](int64_t begin, int64_t end, const KeyRange& prefix, const KeyRange& own) {
    float* p_prefix = Reserve(scratch.p_prefix, kQueryBlock * prefix.padded);
    float* p_own = Reserve(scratch.p_own, kQueryBlock * own.padded);
    for (int64_t h = kv_head * heads_per_kv; h < (kv_head + 1) * heads_per_kv; ++h) {
      const float* q = args.q + begin * q_stride + h * shape.head_dim;
      float* out = args.out + begin * q_stride + h * shape.head_dim;
      TimesTransposed(q, q_stride, end - begin, shape.head_dim, prefix, prefix.keys_t, p_prefix);
      TimesTransposed(q, q_stride, end - begin, shape.head_dim, own, own.keys_t, p_own);
      for (int64_t i = begin; i < end; ++i) {
        float* own_row = p_own + (i - begin) * own.padded;
        const int64_t visible = i - own.begin + 1;
        args.lse[i * shape.num_heads + h] = SoftmaxRow(p_prefix + (i - begin) * prefix.padded,
                                                       prefix.count, own_row, visible, shape.scale);
        std::fill(own_row + visible, own_row + own.count, 0.0f);
      }
      if (prefix.count > 0) {
        SmallMatmul(end - begin, shape.head_dim, prefix.count, p_prefix, prefix.padded, 1,
                    values + prefix.begin * kv_stride, kv_stride, out, q_stride, false);
      }
      SmallMatmul(end - begin, shape.head_dim, own.count, p_own, own.padded, 1,
                  values + own.begin * kv_stride, kv_stride, out, q_stride, prefix.count > 0);
    }
  };
  ForEachQueryBlock(part, kv_head, shape, args.k, args.v, false, scratch, attend);
}

void AttendBackward(std::span<const Segment> part, int64_t kv_head, const AttentionShape& shape,
                    const AttentionBackwardArgs& args) {
  Scratch scratch;
  const int64_t dim = shape.head_dim;
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  const int64_t q_stride = shape.num_heads * dim;
  const int64_t kv_stride = shape.num_kv_heads * dim;
  const float* keys = args.k + kv_head * dim;
  float* keys_grad = args.k_grad + kv_head * dim;
  float* values_grad = args.v_grad + kv_head * dim;
  for (const Segment& segment : part) {
    for (int64_t j = segment.begin; j < segment.end; ++j) {
      std::fill_n(keys_grad + j * kv_stride, dim, 0.0f);
      std::fill_n(values_grad + j * kv_stride, dim, 0.0f);
    }
  }
  // Adds the gradients that queries [begin, end) of head h make with one range of keys.
  const auto through = [&](int64_t begin, int64_t end, int64_t h, const KeyRange& range, float* p,
                           float* dp, bool causal) {
    if (range.count == 0) return;
    const int64_t num_queries = end - begin;
    const float* q = args.q + begin * q_stride + h * dim;
    const float* out = args.out + begin * q_stride + h * dim;
    const float* out_grad = args.out_grad + begin * q_stride + h * dim;
    TimesTransposed(q, q_stride, num_queries, dim, range, range.keys_t, p);
    TimesTransposed(out_grad, q_stride, num_queries, dim, range, range.values_t, dp);
    for (int64_t i = 0; i < num_queries; ++i) {
      float* p_row = p + i * range.padded;
      float* dp_row = dp + i * range.padded;
      const int64_t visible = causal ? begin + i - range.begin + 1 : range.count;
      ProbabilitiesFromLse(p_row, visible, shape.scale,
                           args.lse[(begin + i) * shape.num_heads + h]);
      ScoreGradient(p_row, dp_row, visible, Dot(out + i * q_stride, out_grad + i * q_stride, dim),
                    shape.scale);
      std::fill(p_row + visible, p_row + range.count, 0.0f);
      std::fill(dp_row + visible, dp_row + range.count, 0.0f);
    }
    SmallMatmul(num_queries, dim, range.count, dp, range.padded, 1, keys + range.begin * kv_stride,
                kv_stride, args.q_grad + begin * q_stride + h * dim, q_stride, true);
    SmallMatmul(range.count, dim, num_queries, dp, 1, range.padded, q, q_stride,
                keys_grad + range.begin * kv_stride, kv_stride, true);
    SmallMatmul(range.count, dim, num_queries, p, 1, range.padded, out_grad, q_stride,
                values_grad + range.begin * kv_stride, kv_stride, true);
  };
  const auto attend = [&](int64_t begin, int64_t end, const KeyRange& prefix, const KeyRange& own) {
    float* p_prefix = Reserve(scratch.p_prefix, kQueryBlock * prefix.padded);
    float* p_own = Reserve(scratch.p_own, kQueryBlock * own.padded);
    float* dp_prefix = Reserve(scratch.dp_prefix, kQueryBlock * prefix.padded);
    float* dp_own = Reserve(scratch.dp_own, kQueryBlock * own.padded);
    for (int64_t h = kv_head * heads_per_kv; h < (kv_head + 1) * heads_per_kv; ++h) {
      for (int64_t i = begin; i < end; ++i) {
        std::fill_n(args.q_grad + i * q_stride + h * dim, dim, 0.0f);
      }
      through(begin, end, h, prefix, p_prefix, dp_prefix, false);
      through(begin, end, h, own, p_own, dp_own, true);
    }
  };
  ForEachQueryBlock(part, kv_head, shape, args.k, args.v, true, scratch, attend);
}

}  // namespace tandem::trainer
