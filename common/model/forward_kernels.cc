#include "common/model/forward_kernels.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "common/base/check.h"
#include "common/matrix/quantise.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/vector16.h"

// Idea: every kernel is written once, on vectors of 16 floats or of as many as a register holds
// (vector16.h), and compiled for each instruction set. Attention follows the blocked layout of the KV
// cache: a register holds one dimension of several keys, so their scores are computed without a
// reduction across lanes. A few query rows share each key and value that is loaded, as grouped-query
// attention allows (Ainslie et al. 2023).
//
// Invariant: a result depends on its own row alone, bit for bit. Scores are sums over the head's
// dimensions in order; the weighted values of a row are a sum over its tokens in order. How many
// rows or blocks are computed together changes which registers are used, but no sum.
namespace tandem {
namespace {

static_assert(kKvBlockTokens == kLanes && kHeadPadding == kLanes);

// Uses four running sums of 16 lanes, so that additions overlap.
TANDEM_INLINE float SumOfSquares(const float* x, int64_t n) {
  Vec16 sums[4] = {};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const Vec16 v = Load16(x + i + j * 16);
      sums[j] += v * v;
    }
  }
  for (; i + 16 <= n; i += 16) {
    const Vec16 v = Load16(x + i);
    sums[0] += v * v;
  }
  if (i < n) {
    const Vec16 v = LoadSome16(x + i, n - i, 0.0f);
    sums[1] += v * v;
  }
  return SumLanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

TANDEM_INLINE float RmsNormBody(const float* x, const float* weight, int64_t n, float eps,
                                float* out) {
  const float rstd = 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = weight[i] * (x[i] * rstd);
  return rstd;
}

TANDEM_INLINE void RotateBody(float* head, const float* cosines, const float* sines, int64_t d,
                              const RotationForm& form, float scale) {
  const int64_t half = form.rotated / 2;
  if (form.interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = (a * cosines[i] - b * sines[i]) * scale;
      head[2 * i + 1] = (b * cosines[i] + a * sines[i]) * scale;
    }
  } else {
    for (int64_t i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half];
      head[i] = (a * cosines[i] - b * sines[i]) * scale;
      head[i + half] = (b * cosines[i] + a * sines[i]) * scale;
    }
  }
  for (int64_t i = form.rotated; i < d; ++i) head[i] *= scale;
}

// 1 / (1 + e^-x).
template <typename L>
TANDEM_INLINE typename L::Float Sigmoid(typename L::Float x) {
  return 1.0f / (1.0f + ExpLanes<typename L::Int>(-x));
}

struct Silu {
  template <typename L>
  static TANDEM_INLINE typename L::Float Times(typename L::Float gate, typename L::Float up) {
    return gate / (1.0f + ExpLanes<typename L::Int>(-gate)) * up;
  }
};

// (1 + tanh u) / 2 is the sigmoid of 2 u.
struct GeluTanh {
  template <typename L>
  static TANDEM_INLINE typename L::Float Times(typename L::Float gate, typename L::Float up) {
    constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
    const typename L::Float twice_u = kTwiceRoot * (gate + 0.044715f * gate * gate * gate);
    return gate * Sigmoid<L>(twice_u) * up;
  }
};

template <typename Gate, int kWidth>
TANDEM_INLINE void GatedUnitBody(const float* gate, const float* up, int64_t n, float* out) {
  using L = Lanes<kWidth>;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    L::Store(out + i, Gate::template Times<L>(L::Load(gate + i), L::Load(up + i)));
  }
  if (i == n) return;
  typename L::Float g = {}, u = {};
  for (int64_t j = 0; j < n - i; ++j) {
    g[j] = gate[i + j];
    u[j] = up[i + j];
  }
  const typename L::Float result = Gate::template Times<L>(g, u);
  for (int64_t j = 0; j < n - i; ++j) out[i + j] = result[j];
}

template <int kWidth>
TANDEM_INLINE void SoftCapBody(float* x, int64_t n, float cap) {
  using L = Lanes<kWidth>;
  const float inverse = 1.0f / cap;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    L::Store(x + i, cap * TanhLanes<typename L::Int>(inverse * L::Load(x + i)));
  }
  if (i == n) return;
  typename L::Float rest = {};
  for (int64_t j = 0; j < n - i; ++j) rest[j] = x[i + j];
  rest = cap * TanhLanes<typename L::Int>(inverse * rest);
  for (int64_t j = 0; j < n - i; ++j) x[i + j] = rest[j];
}

TANDEM_INLINE void AddRowsBody(const float* tile, int64_t tile_stride, int64_t rows, int64_t n,
                               float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) out[r * out_stride + i] += tile[r * tile_stride + i];
  }
}

// The order of SumOfSquares.
TANDEM_INLINE float Dot(const float* x, const float* y, int64_t n) {
  Vec16 sums[4] = {};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int j = 0; j < 4; ++j) sums[j] += Load16(x + i + j * 16) * Load16(y + i + j * 16);
  }
  for (; i + 16 <= n; i += 16) sums[0] += Load16(x + i) * Load16(y + i);
  if (i < n) sums[1] += LoadSome16(x + i, n - i, 0.0f) * LoadSome16(y + i, n - i, 0.0f);
  return SumLanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

TANDEM_INLINE void ProjectBody(const float* x, const float* a, int64_t rank, int64_t n,
                               float* out) {
  for (int64_t k = 0; k < rank; ++k) out[k] = Dot(x, a + k * n, n);
}

template <int kWidth>
TANDEM_INLINE void AddLowRankBody(const LowRankRows& hidden, const float* b, float* values,
                                  int64_t stride) {
  using L = Lanes<kWidth>;
  constexpr int kVectors = kLowRankColumns / kWidth;
  for (int64_t r = 0; r < hidden.rows; ++r) {
    const float* h = hidden.values + r * hidden.stride;
    float* out = values + r * stride;
    typename L::Float sums[kVectors] = {};
    for (int64_t k = 0; k < hidden.rank; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        sums[v] += h[k] * L::Load(b + k * kLowRankColumns + v * kWidth);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      L::Store(out + v * kWidth, L::Load(out + v * kWidth) + sums[v]);
    }
  }
}

template <typename Kv>
TANDEM_INLINE Kv StoredAs(float x) {
  if constexpr (std::is_same_v<Kv, float>) {
    return x;
  } else {
    return NearestBf16(x);
  }
}

template <typename Kv>
TANDEM_INLINE void WriteKvBody(const float* key, const float* value, int64_t d,
                               const KvLayer<Kv>& layer, const KvPlace& place) {
  const int64_t padded = PaddedHeadDim(d), slot = place.slot;
  Kv* keys = layer.KeysOf(place.block, place.head);
  Kv* row = layer.ValuesOf(place.block, place.head) + slot * padded;
  for (int64_t i = 0; i < d; ++i) keys[i * kKvBlockTokens + slot] = StoredAs<Kv>(key[i]);
  for (int64_t i = 0; i < d; ++i) row[i] = StoredAs<Kv>(value[i]);
  for (int64_t i = d; i < padded; ++i) row[i] = 0;
}

// Types with scales. The same bits for every instruction set.
float Quantised(const float* row, int64_t d, int8_t* out) { return QuantiseInt8(row, d, out); }
float Quantised(const float* row, int64_t d, E4m3* out) {
  return QuantiseE4m3(row, d, reinterpret_cast<uint8_t*>(out));
}

template <typename Kv>
void WriteScaledKv(const float* key, const float* value, int64_t d, const KvLayer<Kv>& layer,
                   const KvPlace& place) {
  constexpr int64_t kMost = 1024;  // elements of a head that are quantised on the stack
  const int64_t padded = PaddedHeadDim(d);
  Kv buffer[kMost];
  TANDEM_CHECK(d <= kMost);
  const int64_t scale = layer.ScalesAt(place.block, place.head) + place.slot;
  Kv* keys = layer.KeysOf(place.block, place.head);
  layer.key_scales[scale] = Quantised(key, d, buffer);
  for (int64_t i = 0; i < d; ++i) keys[i * kKvBlockTokens + place.slot] = buffer[i];
  Kv* row = layer.ValuesOf(place.block, place.head) + place.slot * padded;
  layer.value_scales[scale] = Quantised(value, d, row);
  std::fill(row + d, row + padded, Kv{0});
}

// The numbers that stored values are, without their scales.
template <int kWidth, typename Kv>
TANDEM_INLINE typename Lanes<kWidth>::Float LoadKv(const Kv* p) {
  using L = Lanes<kWidth>;
  if constexpr (std::is_same_v<Kv, E4m3>) {
    // e4m3.h: subnormals count units of 2^-9, others have the exponent's bias 7 for 127.
    const typename L::Bytes bytes = *reinterpret_cast<const typename L::BytesUnaligned*>(p);
    const auto word = (typename L::Word)L::WidenedInt(bytes);
    const typename L::Word magnitude = word & 0x7fu;
    const typename L::Float counted =
        __builtin_convertvector((typename L::Int)magnitude, typename L::Float) * 0.001953125f;
    const typename L::Word normal = (magnitude << 20) + (120u << 23);
    const auto is_small = (typename L::Int)magnitude < 8;
    const typename L::Word size = is_small ? __builtin_bit_cast(typename L::Word, counted) : normal;
    return L::FromBits(size | (word & 0x80000000u));
  } else {
    return L::Load(p);
  }
}

// Query rows that are computed together, with scratch for their scores. A row attends to tokens
// [begin, context); neither decreases from one row to the next.
struct QueryRows {
  const float* query[kAttentionRows];
  float* scores[kAttentionRows];
  float* out[kAttentionRows];
  int64_t begin[kAttentionRows];
  int64_t context[kAttentionRows];
};

constexpr int64_t BlockBegin(int64_t token) { return token / kKvBlockTokens * kKvBlockTokens; }

// How many blocks before its turn a block is prefetched, about the time that memory takes. Blocks lie
// anywhere, so that hardware prefetchers do not foresee them.
constexpr int64_t kBlocksAhead = 4;

// scores[q][first ..] = dot(query q, key of token first ..), for kVectors vectors of tokens. Prefetches
// as many blocks of what is read next: keys of later tokens up to `end`, and then the first values.
template <int kQueries, int kVectors, int kWidth, typename Kv>
TANDEM_INLINE void KeyScores(const QueryRows& rows, const AttentionTask<Kv>& task, int64_t first,
                             int64_t end) {
  using L = Lanes<kWidth>;
  const auto block_of = [&](int64_t token) __attribute__((always_inline)) {
    return task.blocks[token / kKvBlockTokens];
  };
  const Kv* keys[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t token = first + v * kWidth;
    keys[v] = task.layer.KeysOf(block_of(token), task.kv_head) + token % kKvBlockTokens;
  }
  typename L::Float sums[kQueries][kVectors] = {};
  for (int part = 0; part < kVectors; ++part) {
    const int64_t later = first + part * kWidth + kBlocksAhead * kKvBlockTokens;
    const int64_t of_values = std::min(BlockBegin(rows.begin[0]) + later - end, end - 1);
    const Kv* next = later < end ? task.layer.KeysOf(block_of(later), task.kv_head)
                                 : task.layer.ValuesOf(block_of(of_values), task.kv_head);
    const int64_t until = task.head_dim * (part + 1) / kVectors;
    for (int64_t i = task.head_dim * part / kVectors; i < until; ++i) {
      typename L::Float key[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) key[v] = LoadKv<kWidth>(keys[v] + i * kKvBlockTokens);
      constexpr int64_t kStep = kVectors * kKvBlockTokens, kLine = 64 / sizeof(Kv);
#pragma GCC unroll 4
      for (int64_t at = 0; at < kStep; at += kLine) __builtin_prefetch(next + at);
      next += kStep;
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) {
        const float x = rows.query[q][i];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[q][v] += x * key[v];
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kHasKvScales<Kv>) {
      const int64_t token = first + v * kWidth;
      const int64_t at = task.layer.ScalesAt(task.blocks[token / kKvBlockTokens], task.kv_head);
      const typename L::Float scale = L::Load(task.layer.key_scales + at + token % kKvBlockTokens);
      for (int q = 0; q < kQueries; ++q) sums[q][v] *= scale;
    }
    for (int q = 0; q < kQueries; ++q) {
      L::Store(rows.scores[q] + first + v * kWidth, sums[q][v]);
    }
  }
}

// scores *= the scales of the tokens' values, from the block of `begin` up to `context`.
template <typename Kv>
TANDEM_INLINE void ScaleByValues(const AttentionTask<Kv>& task, int64_t begin, int64_t context,
                                 float* scores) {
  for (int64_t first = begin / kKvBlockTokens * kKvBlockTokens; first < context;
       first += kKvBlockTokens) {
    const float* scales = task.layer.value_scales +
                          task.layer.ScalesAt(task.blocks[first / kKvBlockTokens], task.kv_head);
    const int64_t end = std::min(kKvBlockTokens, context - first);
    for (int64_t j = 0; j < end; ++j) scores[first + j] *= scales[j];
  }
}

struct Softmax {
  float largest = 0, sum = 0;
};

// Turns the first `n` scores into e^(score - largest), and pads them with 0 to a multiple of 16.
TANDEM_INLINE Softmax SoftmaxRow(float* scores, int64_t n) {
  const int64_t full = n / 16 * 16;
  Vec16 largest = Splat16(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < full; i += 16) largest = Max16(Load16(scores + i), largest);
  if (full < n) {
    largest = Max16(LoadSome16(scores + full, n - full, -std::numeric_limits<float>::infinity()),
                    largest);
  }
  const float max = MaxLane(largest);
  Vec16 sums = {};
  for (int64_t i = 0; i < full; i += 16) {
    const Vec16 e = Exp16(Load16(scores + i) - max);
    Store16(scores + i, e);
    sums += e;
  }
  if (full < n) {
    Store16(scores + full, Exp16(Load16(scores + full) - max));
    for (int64_t i = n; i < full + 16; ++i) scores[i] = 0;
    sums += Load16(scores + full);
  }
  return {max, SumLanes(sums)};
}

// The same for scores [begin, context), from the start of the block of `begin` on; scores before it
// become 0.
TANDEM_INLINE Softmax SoftmaxOf(float* scores, int64_t begin, int64_t context) {
  const int64_t block = BlockBegin(begin);
  for (int64_t i = block; i < begin; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  const Softmax softmax = SoftmaxRow(scores + block, context - block);
  for (int64_t i = block; i < begin; ++i) scores[i] = 0;
  return softmax;
}

// out[q][column ..] = inverse[q] * sum over the tokens j of row q of scores[q][j] * value j, for
// kVectors vectors. A row does not read values of other tokens, not even to multiply them by 0: such
// a value may be NaN, of a later token that the row's sequence does not share.
template <int kQueries, int kVectors, int kWidth, typename Kv>
TANDEM_INLINE void WeightedValues(const QueryRows& rows, const AttentionTask<Kv>& task,
                                  const float* inverse, int64_t column) {
  using L = Lanes<kWidth>;
  const int64_t padded = PaddedHeadDim(task.head_dim);
  const int64_t shortest = rows.context[0], context = rows.context[kQueries - 1];
  const int64_t latest = rows.begin[kQueries - 1];
  typename L::Float sums[kQueries][kVectors] = {};
  for (int64_t begin = BlockBegin(rows.begin[0]); begin < context; begin += kKvBlockTokens) {
    const Kv* values =
        task.layer.ValuesOf(task.blocks[begin / kKvBlockTokens], task.kv_head) + column;
    const int64_t later = std::min(begin + kBlocksAhead * kKvBlockTokens, context - 1);
    const Kv* next =
        task.layer.ValuesOf(task.blocks[later / kKvBlockTokens], task.kv_head) + column;
    const auto add_some = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
      for (int64_t j = from; j < to; ++j) {
        for (int q = 0; q < kQueries; ++q) {
          if (begin + j < rows.begin[q] || begin + j >= rows.context[q]) continue;
          const float p = rows.scores[q][begin + j];
          for (int v = 0; v < kVectors; ++v) {
            sums[q][v] += p * LoadKv<kWidth>(values + j * padded + v * kWidth);
          }
        }
      }
    };
    const int64_t end = std::min(kKvBlockTokens, context - begin);
    const int64_t first = std::clamp<int64_t>(latest - begin, 0, end);  // of all rows
    const int64_t count = std::clamp<int64_t>(shortest - begin, first, end);
    add_some(0, first);
    for (int64_t j = first; j < count; ++j) {
      typename L::Float value[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        value[v] = LoadKv<kWidth>(values + j * padded + v * kWidth);
      }
      constexpr int64_t kLine = 64 / sizeof(Kv);
#pragma GCC unroll 4
      for (int64_t at = 0; at < kVectors * kWidth; at += kLine) {
        __builtin_prefetch(next + j * padded + at);
      }
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) {
        const float p = rows.scores[q][begin + j];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[q][v] += p * value[v];
      }
    }
    add_some(count, end);
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      const typename L::Float scaled = sums[q][v] * inverse[q];
      const int64_t first = column + v * kWidth;
      if (first + kWidth <= task.head_dim) {
        L::Store(rows.out[q] + first, scaled);
      } else {
        for (int64_t i = first; i < task.head_dim; ++i) rows.out[q][i] = scaled[i - first];
      }
    }
  }
}

// Attention for kQueries consecutive query rows from `first` on; rows are ordered by token, then by
// head. All rows compute scores up to the last row's context, and earlier tokens ignore those past
// their own.
template <int kQueries, int kWidth, typename Kv>
TANDEM_INLINE void AttendQueries(const AttentionTask<Kv>& task, int64_t first, float* scratch) {
  const int64_t last_context = task.first_position + (first + kQueries - 1) / task.num_heads + 1;
  const int64_t num_blocks = (last_context + kKvBlockTokens - 1) / kKvBlockTokens;
  QueryRows rows;
  for (int q = 0; q < kQueries; ++q) {
    const int64_t token = (first + q) / task.num_heads, head = (first + q) % task.num_heads;
    rows.query[q] = task.queries + token * task.query_stride + head * task.head_dim;
    rows.out[q] = task.out + token * task.out_stride + head * task.head_dim;
    rows.scores[q] = scratch + q * num_blocks * kKvBlockTokens;
    rows.context[q] = task.first_position + token + 1;
    rows.begin[q] = task.window > 0 ? std::max<int64_t>(0, rows.context[q] - task.window) : 0;
  }
  // Sums of all queries, with the keys or values that they share, stay in registers: 32 of 16 floats,
  // or 16 of fewer.
  constexpr int kScores = kQueries <= 3 ? 4 : 2;
  const int64_t first_block = BlockBegin(rows.begin[0]);
  int64_t token = first_block;
  const int64_t end = num_blocks * kKvBlockTokens;
  for (; token + kScores * kWidth <= end; token += kScores * kWidth) {
    KeyScores<kQueries, kScores, kWidth>(rows, task, token, end);
  }
  for (; token < end; token += kWidth) KeyScores<kQueries, 1, kWidth>(rows, task, token, end);

  float inverse[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    const int64_t token = (first + q) / task.num_heads, head = (first + q) % task.num_heads;
    if (task.softcap > 0) {
      SoftCapBody<kWidth>(rows.scores[q] + first_block, num_blocks * kKvBlockTokens - first_block,
                          task.softcap);
    }
    const Softmax softmax = SoftmaxOf(rows.scores[q], rows.begin[q], rows.context[q]);
    inverse[q] = 1.0f / softmax.sum;
    if (task.lse != nullptr) {
      task.lse[token * task.lse_stride + head] = softmax.largest + std::log(softmax.sum);
    }
    if constexpr (kHasKvScales<Kv>) {
      ScaleByValues(task, rows.begin[q], rows.context[q], rows.scores[q]);
    }
  }
  const int64_t padded = PaddedHeadDim(task.head_dim);
  constexpr int kValues = kWidth == 16 || kQueries <= 3 ? 4 : 2;
  int64_t column = 0;
  for (; column + kValues * kWidth <= padded; column += kValues * kWidth) {
    WeightedValues<kQueries, kValues, kWidth>(rows, task, inverse, column);
  }
  for (; column < padded; column += kWidth) {
    WeightedValues<kQueries, 1, kWidth>(rows, task, inverse, column);
  }
}

template <int kWidth, typename Kv>
TANDEM_INLINE void AttendBody(const AttentionTask<Kv>& task, float* scratch) {
  const int64_t num_queries = task.num_tokens * task.num_heads;
  int64_t q = 0;
  static_assert(kAttentionRows == 6);
  for (; q + 6 <= num_queries; q += 6) AttendQueries<6, kWidth>(task, q, scratch);
  if (num_queries - q >= 4) {
    AttendQueries<4, kWidth>(task, q, scratch);
    q += 4;
  }
  switch (num_queries - q) {
    case 3:
      return AttendQueries<3, kWidth>(task, q, scratch);
    case 2:
      return AttendQueries<2, kWidth>(task, q, scratch);
    case 1:
      return AttendQueries<1, kWidth>(task, q, scratch);
    default:
      return;
  }
}

// Defines one copy of every kernel per instruction set, with registers of `width` floats.
#define TANDEM_DEFINE_KERNELS(set, width, target)                                                 \
  target float RmsNorm##set(const float* x, const float* weight, int64_t n, float eps,            \
                            float* out) {                                                         \
    return RmsNormBody(x, weight, n, eps, out);                                                   \
  }                                                                                               \
  target void Rotate##set(float* head, const float* cosines, const float* sines, int64_t d,       \
                          const RotationForm& form, float scale) {                                \
    RotateBody(head, cosines, sines, d, form, scale);                                             \
  }                                                                                               \
  target void SwiGlu##set(const float* gate, const float* up, int64_t n, float* out) {            \
    GatedUnitBody<Silu, width>(gate, up, n, out);                                                 \
  }                                                                                               \
  target void GeGlu##set(const float* gate, const float* up, int64_t n, float* out) {             \
    GatedUnitBody<GeluTanh, width>(gate, up, n, out);                                             \
  }                                                                                               \
  target void SoftCap##set(float* x, int64_t n, float cap) { SoftCapBody<width>(x, n, cap); }     \
  target void AddRows##set(const float* tile, int64_t tile_stride, int64_t rows, int64_t n,       \
                           float* out, int64_t out_stride) {                                      \
    AddRowsBody(tile, tile_stride, rows, n, out, out_stride);                                     \
  }                                                                                               \
  target void Project##set(const float* x, const float* a, int64_t rank, int64_t n, float* out) { \
    ProjectBody(x, a, rank, n, out);                                                              \
  }                                                                                               \
  target void AddLowRank##set(const LowRankRows& hidden, const float* b, float* values,           \
                              int64_t stride) {                                                   \
    AddLowRankBody<width>(hidden, b, values, stride);                                             \
  }                                                                                               \
  target void WriteKvFp32##set(const float* key, const float* value, int64_t d,                   \
                               const KvLayer<float>& layer, const KvPlace& place) {               \
    WriteKvBody(key, value, d, layer, place);                                                     \
  }                                                                                               \
  target void WriteKvBf16##set(const float* key, const float* value, int64_t d,                   \
                               const KvLayer<uint16_t>& layer, const KvPlace& place) {            \
    WriteKvBody(key, value, d, layer, place);                                                     \
  }                                                                                               \
  target void AttendFp32##set(const AttentionTask<float>& task, float* scratch) {                 \
    AttendBody<width>(task, scratch);                                                             \
  }                                                                                               \
  target void AttendBf16##set(const AttentionTask<uint16_t>& task, float* scratch) {              \
    AttendBody<width>(task, scratch);                                                             \
  }                                                                                               \
  target void AttendInt8##set(const AttentionTask<int8_t>& task, float* scratch) {                \
    AttendBody<width>(task, scratch);                                                             \
  }                                                                                               \
  target void AttendFp8##set(const AttentionTask<E4m3>& task, float* scratch) {                   \
    AttendBody<width>(task, scratch);                                                             \
  }                                                                                               \
  constexpr ForwardKernels kKernels##set = {                                                      \
      RmsNorm##set,     Rotate##set,      SwiGlu##set,           GeGlu##set,                      \
      SoftCap##set,     AddRows##set,     Project##set,          AddLowRank##set,                 \
      WriteKvFp32##set, WriteKvBf16##set, WriteScaledKv<int8_t>, WriteScaledKv<E4m3>,             \
      AttendFp32##set,  AttendBf16##set,  AttendInt8##set,       AttendFp8##set};

TANDEM_DEFINE_KERNELS(Scalar, 4, )
TANDEM_DEFINE_KERNELS(Avx2, 8, TANDEM_TARGET_AVX2)
TANDEM_DEFINE_KERNELS(Avx512, 16, TANDEM_TARGET_AVX512)

}  // namespace

const ForwardKernels& ForwardKernelsFor(InstructionSet set) {
  return VariantFor(set, kKernelsScalar, kKernelsAvx2, kKernelsAvx512);
}

}  // namespace tandem
