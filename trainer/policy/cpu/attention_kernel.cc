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
// A soft cap s = c tanh(x / c) of the scores x multiplies dS by ds/dx = 1 - (s / c)^2. A window leaves
// out whole sixteens of keys that no query of the block sees, and sets the other scores before it to
// 0 after the softmax.
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

// Scores x -> c tanh(scale x / c), and their slopes by scale x, [count].
TANDEM_VECTOR_CLONES
void CapScores(float* scores, int64_t count, float scale, float cap, float* slopes) {
  const float inverse = scale / cap;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float share = VectorTanh(scores[j] * inverse);
    scores[j] = cap * share;
    slopes[j] = 1.0f - share * share;
  }
}

TANDEM_VECTOR_CLONES
void Multiply(float* values, const float* by, int64_t count) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) values[j] *= by[j];
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

  // Without the sixteens of keys before key `first`.
  KeyRange From(int64_t first) const {
    const int64_t skipped = std::min(first, count) / 16 * 16;
    return {begin + skipped, count - skipped, padded, keys_t + skipped,
            values_t == nullptr ? nullptr : values_t + skipped};
  }
};

// The first key that a query sees, from a key that stands `distance` tokens before it.
int64_t FirstVisible(int64_t distance, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, distance - window + 1) : 0;
}

// Queries [begin, end) of a row; `begin` is the `place`-th of its segment.
struct QueryBlock {
  int64_t begin = 0, end = 0, place = 0;
};

struct Scratch {
  std::vector<float> prefix_keys_t, own_keys_t, prefix_values_t, own_values_t;
  std::vector<float> p_prefix, p_own, dp_prefix, dp_own;  // [kQueryBlock, padded]
  std::vector<float> slopes;                              // [padded]
};

float* Reserve(std::vector<float>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(static_cast<size_t>(size));
  return buffer.data();
}

// Runs `body(block, prefix, own)` over blocks of queries of every segment: the keys of the prefix that
// some query of the block sees, and those of the own segment up to the block's end.
template <typename Body>
void ForEachQueryBlock(std::span<const Segment> part, int64_t kv_head, const AttentionForm& form,
                       const float* k, const float* v, bool with_values, Scratch& scratch,
                       const Body& body) {
  const int64_t stride = form.num_kv_heads * form.head_dim;
  const int64_t offset = kv_head * form.head_dim;
  KeyRange prefix;
  for (const Segment& segment : part) {
    const int64_t length = segment.end - segment.begin;
    Transpose(k + segment.begin * stride + offset, stride, length, form.head_dim,
              scratch.own_keys_t);
    if (with_values) {
      Transpose(v + segment.begin * stride + offset, stride, length, form.head_dim,
                scratch.own_values_t);
    }
    for (int64_t begin = segment.begin; begin < segment.end; begin += kQueryBlock) {
      const int64_t end = std::min(begin + kQueryBlock, segment.end);
      const KeyRange own{segment.begin, end - segment.begin, RoundUp16(length),
                         scratch.own_keys_t.data(), scratch.own_values_t.data()};
      const QueryBlock block{begin, end, begin - segment.begin};
      body(block, prefix.From(FirstVisible(prefix.count + block.place, form.window)),
           own.From(FirstVisible(block.place, form.window)));
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

// The keys of one row that a query sees: [first, end) of a range.
struct Visible {
  int64_t first = 0, end = 0;

  int64_t count() const { return end - first; }
};

// What the query sees that is the `place`-th of its segment: of its own segment's keys, whose first
// stands `distance` tokens before it, and of the prefix, which ends where its segment begins.
Visible OwnVisible(int64_t distance, int64_t window) {
  return {FirstVisible(distance, window), distance + 1};
}
Visible PrefixVisible(int64_t place, const KeyRange& prefix, int64_t window) {
  return {std::min(FirstVisible(prefix.count + place, window), prefix.count), prefix.count};
}

// Zeros outside of what is seen.
void ClearOthers(float* row, const Visible& visible, int64_t count) {
  std::fill(row, row + visible.first, 0.0f);
  std::fill(row + visible.end, row + count, 0.0f);
}

// Turns the scores of query i of a block into probabilities; returns lse.
float Probabilities(const QueryBlock& block, int64_t i, const KeyRange& prefix, float* prefix_row,
                    const KeyRange& own, float* own_row, const AttentionForm& form,
                    Scratch& scratch) {
  const Visible of_prefix = PrefixVisible(block.place + i - block.begin, prefix, form.window);
  const Visible of_own = OwnVisible(i - own.begin, form.window);
  float* seen_prefix = prefix_row + of_prefix.first;
  float* seen_own = own_row + of_own.first;
  float scale = form.scale;
  if (form.softcap > 0) {
    float* slopes = Reserve(scratch.slopes, std::max(prefix.padded, own.padded));
    CapScores(seen_prefix, of_prefix.count(), scale, form.softcap, slopes);
    CapScores(seen_own, of_own.count(), scale, form.softcap, slopes);
    scale = 1;
  }
  const float lse = SoftmaxRow(seen_prefix, of_prefix.count(), seen_own, of_own.count(), scale);
  ClearOthers(prefix_row, of_prefix, prefix.count);
  ClearOthers(own_row, of_own, own.count);
  return lse;
}

// Scores -> P and dP -> dS of one query, in place, with zeros outside of what it sees. `slopes` has
// room for a row.
void ScoreGradients(float* p, float* dp, const Visible& visible, int64_t count, float lse,
                    float out_dot, const AttentionForm& form, float* slopes) {
  float* seen = p + visible.first;
  const bool capped = form.softcap > 0;
  if (capped) CapScores(seen, visible.count(), form.scale, form.softcap, slopes);
  ProbabilitiesFromLse(seen, visible.count(), capped ? 1.0f : form.scale, lse);
  ScoreGradient(seen, dp + visible.first, visible.count(), out_dot, form.scale);
  if (capped) Multiply(dp + visible.first, slopes, visible.count());
  ClearOthers(p, visible, count);
  ClearOthers(dp, visible, count);
}

}  // namespace

void AttendForward(std::span<const Segment> part, int64_t kv_head, const AttentionForm& form,
                   const AttentionForwardArgs& args) {
  Scratch scratch;
  const int64_t heads_per_kv = form.num_heads / form.num_kv_heads;
  const int64_t q_stride = form.num_heads * form.head_dim;
  const int64_t kv_stride = form.num_kv_heads * form.head_dim;
  const float* values = args.v + kv_head * form.head_dim;
  const auto attend = [&](const QueryBlock& block, const KeyRange& prefix, const KeyRange& own) {
    const int64_t begin = block.begin, end = block.end;
    float* p_prefix = Reserve(scratch.p_prefix, kQueryBlock * prefix.padded);
    float* p_own = Reserve(scratch.p_own, kQueryBlock * own.padded);
    for (int64_t h = kv_head * heads_per_kv; h < (kv_head + 1) * heads_per_kv; ++h) {
      const float* q = args.q + begin * q_stride + h * form.head_dim;
      float* out = args.out + begin * q_stride + h * form.head_dim;
      TimesTransposed(q, q_stride, end - begin, form.head_dim, prefix, prefix.keys_t, p_prefix);
      TimesTransposed(q, q_stride, end - begin, form.head_dim, own, own.keys_t, p_own);
      for (int64_t i = begin; i < end; ++i) {
        args.lse[i * form.num_heads + h] =
            Probabilities(block, i, prefix, p_prefix + (i - begin) * prefix.padded, own,
                          p_own + (i - begin) * own.padded, form, scratch);
      }
      if (prefix.count > 0) {
        SmallMatmul(end - begin, form.head_dim, prefix.count, p_prefix, prefix.padded, 1,
                    values + prefix.begin * kv_stride, kv_stride, out, q_stride, false);
      }
      SmallMatmul(end - begin, form.head_dim, own.count, p_own, own.padded, 1,
                  values + own.begin * kv_stride, kv_stride, out, q_stride, prefix.count > 0);
    }
  };
  ForEachQueryBlock(part, kv_head, form, args.k, args.v, false, scratch, attend);
}

void AttendBackward(std::span<const Segment> part, int64_t kv_head, const AttentionForm& form,
                    const AttentionBackwardArgs& args) {
  Scratch scratch;
  const int64_t dim = form.head_dim;
  const int64_t heads_per_kv = form.num_heads / form.num_kv_heads;
  const int64_t q_stride = form.num_heads * dim;
  const int64_t kv_stride = form.num_kv_heads * dim;
  const float* keys = args.k + kv_head * dim;
  float* keys_grad = args.k_grad + kv_head * dim;
  float* values_grad = args.v_grad + kv_head * dim;
  for (const Segment& segment : part) {
    for (int64_t j = segment.begin; j < segment.end; ++j) {
      std::fill_n(keys_grad + j * kv_stride, dim, 0.0f);
      std::fill_n(values_grad + j * kv_stride, dim, 0.0f);
    }
  }
  // Adds the gradients that the queries of a block and head h make with one range of keys.
  // `visible_of` tells what the query i of the row sees of the range.
  const auto through = [&](const QueryBlock& block, int64_t h, const KeyRange& range, float* p,
                           float* dp, const auto& visible_of) {
    if (range.count == 0) return;
    const int64_t begin = block.begin, num_queries = block.end - block.begin;
    const float* q = args.q + begin * q_stride + h * dim;
    const float* out = args.out + begin * q_stride + h * dim;
    const float* out_grad = args.out_grad + begin * q_stride + h * dim;
    TimesTransposed(q, q_stride, num_queries, dim, range, range.keys_t, p);
    TimesTransposed(out_grad, q_stride, num_queries, dim, range, range.values_t, dp);
    for (int64_t i = 0; i < num_queries; ++i) {
      const Visible visible = visible_of(begin + i);
      const float out_dot = Dot(out + i * q_stride, out_grad + i * q_stride, dim);
      ScoreGradients(p + i * range.padded, dp + i * range.padded, visible, range.count,
                     args.lse[(begin + i) * form.num_heads + h], out_dot, form,
                     Reserve(scratch.slopes, range.padded));
    }
    SmallMatmul(num_queries, dim, range.count, dp, range.padded, 1, keys + range.begin * kv_stride,
                kv_stride, args.q_grad + begin * q_stride + h * dim, q_stride, true);
    SmallMatmul(range.count, dim, num_queries, dp, 1, range.padded, q, q_stride,
                keys_grad + range.begin * kv_stride, kv_stride, true);
    SmallMatmul(range.count, dim, num_queries, p, 1, range.padded, out_grad, q_stride,
                values_grad + range.begin * kv_stride, kv_stride, true);
  };
  const auto attend = [&](const QueryBlock& block, const KeyRange& prefix, const KeyRange& own) {
    float* p_prefix = Reserve(scratch.p_prefix, kQueryBlock * prefix.padded);
    float* p_own = Reserve(scratch.p_own, kQueryBlock * own.padded);
    float* dp_prefix = Reserve(scratch.dp_prefix, kQueryBlock * prefix.padded);
    float* dp_own = Reserve(scratch.dp_own, kQueryBlock * own.padded);
    for (int64_t h = kv_head * heads_per_kv; h < (kv_head + 1) * heads_per_kv; ++h) {
      for (int64_t i = block.begin; i < block.end; ++i) {
        std::fill_n(args.q_grad + i * q_stride + h * dim, dim, 0.0f);
      }
      through(block, h, prefix, p_prefix, dp_prefix, [&](int64_t i) {
        return PrefixVisible(block.place + i - block.begin, prefix, form.window);
      });
      through(block, h, own, p_own, dp_own,
              [&](int64_t i) { return OwnVisible(i - own.begin, form.window); });
    }
  };
  ForEachQueryBlock(part, kv_head, form, args.k, args.v, true, scratch, attend);
}

}  // namespace tandem::trainer
