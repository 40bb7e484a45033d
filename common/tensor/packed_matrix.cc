#include "common/tensor/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/vector16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Idea: register blocking, as in GotoBLAS (Goto and van de Geijn 2008), but without blocking the
// inner dimension. The sums of a tile, kRows x kVectors vectors, stay in registers while k runs
// over the whole depth. For each k, the kernel loads kVectors vectors of weights and broadcasts
// one input per row. A decode step has few rows, so its time is that of reading the weights: panels
// are laid out in the order of reading, and the next tile is prefetched.
//
// Invariant: each lane of a sum is one output, and adds a[k] * w[k] for k = 0, 1, 2, ... The block
// shapes (12, 8, 4, 2 or 1 rows; 1 or 2 panels) decide what is computed together, and never the
// order of a sum. kAvx512Bf16 with bf16 operands adds pairs of k in one instruction, and therefore
// has bits of its own.
namespace tandem {
namespace {

// Prefetches the cache line `offset` bytes past `next`, because hardware prefetchers do not foresee
// the jump to the next tile.
TANDEM_INLINE void Fetch(const char* next, int64_t offset) {
  if (next != nullptr) __builtin_prefetch(next + offset, 0, 2);
}

// A tile is kRows x kVectors vectors of 16 sums, each in as many registers as the instruction set
// needs for it: 16 / kWidth.
template <int kWidth>
struct Fp32Weights {
  using W = float;
  using Vector = Lanes<kWidth>;
  // Computes out[0 .. kRows)[0 .. 16 kVectors) of one tile.
  template <int kRows, int kVectors>
  static TANDEM_INLINE void Tile(const float* x, int64_t x_stride, const float* panels,
                                 int64_t depth, float* out, int64_t out_stride, const char* next) {
    constexpr int kParts = 16 / kWidth;
    typename Vector::Float sums[kRows][kVectors * kParts] = {};
    for (int64_t k = 0; k < depth; ++k) {
      typename Vector::Float w[kVectors * kParts];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) {
          w[v * kParts + p] = Vector::Load(panels + (v * depth + k) * 16 + p * kWidth);
        }
        Fetch(next, (v * depth + k) * 64);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float a = x[r * x_stride + k];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors * kParts; ++i) sums[r][i] += a * w[i];
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors * kParts; ++i) {
        Vector::Store(out + r * out_stride + i * kWidth, sums[r][i]);
      }
    }
  }
  static constexpr int64_t PanelWords(int64_t depth) { return depth * 16; }
};

// bf16 weights times fp32 rows. A bf16 is the upper half of the float it represents.
template <int kWidth>
struct Bf16Weights {
  using W = uint32_t;
  using Vector = Lanes<kWidth>;
  template <int kRows, int kVectors>
  static TANDEM_INLINE void Tile(const float* x, int64_t x_stride, const uint32_t* panels,
                                 int64_t depth, float* out, int64_t out_stride, const char* next) {
    constexpr int kParts = 16 / kWidth;
    typename Vector::Float sums[kRows][kVectors * kParts] = {};
    const int64_t pairs = (depth + 1) / 2;
    const auto weights = [&](int i, int64_t pair) __attribute__((always_inline)) {
      return Vector::LoadWords(panels + (i / kParts * pairs + pair) * 16 + i % kParts * kWidth);
    };
    for (int64_t pair = 0; pair < depth / 2; ++pair) {
      typename Vector::Float low[kVectors * kParts], high[kVectors * kParts];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors * kParts; ++i) {
        const typename Vector::Word words = weights(i, pair);
        low[i] = Vector::FromBits(words << 16);
        high[i] = Vector::FromBits(words & 0xffff0000u);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Fetch(next, (v * pairs + pair) * 64);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float a = x[r * x_stride + 2 * pair], b = x[r * x_stride + 2 * pair + 1];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors * kParts; ++i) sums[r][i] += a * low[i];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors * kParts; ++i) sums[r][i] += b * high[i];
      }
    }
    if (depth % 2 != 0) {
      for (int i = 0; i < kVectors * kParts; ++i) {
        const typename Vector::Float low = Vector::FromBits(weights(i, pairs - 1) << 16);
        for (int r = 0; r < kRows; ++r) sums[r][i] += x[r * x_stride + depth - 1] * low;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors * kParts; ++i) {
        Vector::Store(out + r * out_stride + i * kWidth, sums[r][i]);
      }
    }
  }
  static constexpr int64_t PanelWords(int64_t depth) { return (depth + 1) / 2 * 16; }
};

// All rows times kVectors adjacent panels, with as many rows at a time as there are registers for.
// The last rows prefetch what comes next.
template <typename Kind, int kMaxRows, int kVectors>
TANDEM_INLINE void Rows(const float* x, int64_t x_stride, int64_t rows,
                        const typename Kind::W* panels, int64_t depth, float* out,
                        int64_t out_stride, const char* next) {
  int64_t r = 0;
  const auto tile = [&]<int kRows>() __attribute__((always_inline)) {
    const bool last = r + kRows == rows;
    Kind::template Tile<kRows, kVectors>(x + r * x_stride, x_stride, panels, depth,
                                         out + r * out_stride, out_stride, last ? next : nullptr);
    r += kRows;
  };
  while (rows - r >= kMaxRows) tile.template operator()<kMaxRows>();
  if constexpr (kMaxRows > 8) {
    if (rows - r >= 8) tile.template operator()<8>();
  }
  if constexpr (kMaxRows > 4) {
    if (rows - r >= 4) tile.template operator()<4>();
  }
  if constexpr (kMaxRows > 2) {
    if (rows - r >= 2) tile.template operator()<2>();
  }
  if (rows - r >= 1) tile.template operator()<1>();
}

// One or two panels, kVectors at a time.
template <typename Kind, int kMaxRows, int kVectors>
TANDEM_INLINE void Panels(const void* x, int64_t x_stride, int64_t rows, const void* panels,
                          int64_t num_panels, int64_t depth, float* out, int64_t out_stride,
                          const char* next) {
  const auto* xs = static_cast<const float*>(x);
  const auto* w = static_cast<const typename Kind::W*>(panels);
  if (kVectors == 2 && num_panels == 2) {
    Rows<Kind, kMaxRows, 2>(xs, x_stride, rows, w, depth, out, out_stride, next);
    return;
  }
  const int64_t words = Kind::PanelWords(depth);
  for (int64_t p = 0; p < num_panels; ++p) {
    Rows<Kind, kMaxRows, 1>(xs, x_stride, rows, w + p * words, depth, out + p * 16, out_stride,
                            next != nullptr ? next + p * words * 4 : nullptr);
  }
}

#define TANDEM_PANELS_ARGUMENTS                                                          \
  const void *x, int64_t x_stride, int64_t rows, const void *panels, int64_t num_panels, \
      int64_t depth, float *out, int64_t out_stride, const char *next

using PanelsFunction = void(TANDEM_PANELS_ARGUMENTS);

#define TANDEM_DEFINE_PANELS(name, target, kind, max_rows, vectors)                                \
  target void name(TANDEM_PANELS_ARGUMENTS) {                                                      \
    Panels<kind, max_rows, vectors>(x, x_stride, rows, panels, num_panels, depth, out, out_stride, \
                                    next);                                                         \
  }

// Registers of sums per tile: 12 x 2 of 32 for AVX-512; 6 x 1 (5 x 1 for bf16) pairs of 16 for
// AVX2; 2 x 1 quadruples of 16 for scalar code.
TANDEM_DEFINE_PANELS(Fp32Scalar, , Fp32Weights<4>, 2, 1)
TANDEM_DEFINE_PANELS(Bf16Scalar, , Bf16Weights<4>, 2, 1)
TANDEM_DEFINE_PANELS(Fp32Avx2, TANDEM_TARGET_AVX2, Fp32Weights<8>, 6, 1)
TANDEM_DEFINE_PANELS(Bf16Avx2, TANDEM_TARGET_AVX2, Bf16Weights<8>, 5, 1)
TANDEM_DEFINE_PANELS(Fp32Avx512, TANDEM_TARGET_AVX512, Fp32Weights<16>, 12, 2)
TANDEM_DEFINE_PANELS(Bf16Avx512, TANDEM_TARGET_AVX512, Bf16Weights<16>, 12, 2)

#if defined(__x86_64__)
// bf16 weights times bf16 rows, two input features per instruction.
template <int kRows, int kVectors>
TANDEM_TARGET_AVX512_BF16 TANDEM_INLINE void TilePairs(const uint32_t* x, int64_t x_stride,
                                                       const uint32_t* panels, int64_t pairs,
                                                       float* out, int64_t out_stride,
                                                       const char* next) {
  __m512 sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512bh w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      w[v] = (__m512bh)_mm512_load_si512(panels + (v * pairs + pair) * 16);
      Fetch(next, (v * pairs + pair) * 64);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r * x_stride + pair]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], a, w[v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(out + r * out_stride + v * 16, sums[r][v]);
  }
}

template <int kVectors>
TANDEM_TARGET_AVX512_BF16 TANDEM_INLINE void RowsPairs(const uint32_t* x, int64_t x_stride,
                                                       int64_t rows, const uint32_t* panels,
                                                       int64_t pairs, float* out,
                                                       int64_t out_stride, const char* next) {
  int64_t r = 0;
#define TANDEM_ROWS(count)                                                                    \
  TilePairs<count, kVectors>(x + r * x_stride, x_stride, panels, pairs, out + r * out_stride, \
                             out_stride, r + (count) == rows ? next : nullptr);               \
  r += (count);
  while (rows - r >= 12) {
    TANDEM_ROWS(12)
  }
  if (rows - r >= 8) {
    TANDEM_ROWS(8)
  }
  if (rows - r >= 4) {
    TANDEM_ROWS(4)
  }
  if (rows - r >= 2) {
    TANDEM_ROWS(2)
  }
  if (rows - r >= 1) {
    TANDEM_ROWS(1)
  }
#undef TANDEM_ROWS
}

TANDEM_TARGET_AVX512_BF16 void PairsAvx512Bf16(TANDEM_PANELS_ARGUMENTS) {
  const auto* xs = static_cast<const uint32_t*>(x);
  const auto* w = static_cast<const uint32_t*>(panels);
  if (num_panels == 2) {
    RowsPairs<2>(xs, x_stride / 2, rows, w, depth / 2, out, out_stride, next);
  } else {
    RowsPairs<1>(xs, x_stride / 2, rows, w, depth / 2, out, out_stride, next);
  }
}
#else
void PairsAvx512Bf16(TANDEM_PANELS_ARGUMENTS) { TANDEM_CHECK(false); }
#endif

// Rounds to bf16 and stores the bits, or the floats they represent.
TANDEM_INLINE void RoundRow(const float* row, int64_t n, OperandType type, void* out) {
  if (type == OperandType::kBf16) {
    auto* to = static_cast<uint16_t*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = NearestBf16(row[i]);
  } else {
    auto* to = static_cast<float*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = Bf16ToFloat(NearestBf16(row[i]));
  }
}

#define TANDEM_DEFINE_ROUND(name, target)                                      \
  target void name(const float* row, int64_t n, OperandType type, void* out) { \
    RoundRow(row, n, type, out);                                               \
  }

TANDEM_DEFINE_ROUND(RoundScalar, )
TANDEM_DEFINE_ROUND(RoundAvx2, TANDEM_TARGET_AVX2)
TANDEM_DEFINE_ROUND(RoundAvx512, TANDEM_TARGET_AVX512)

PanelsFunction* FindFunction(InstructionSet set, bool bf16_weights, OperandType operand) {
  if (operand == OperandType::kBf16) {
    TANDEM_CHECK(bf16_weights && set == InstructionSet::kAvx512Bf16);
    return PairsAvx512Bf16;
  }
  return bf16_weights ? VariantFor(set, Bf16Scalar, Bf16Avx2, Bf16Avx512)
                      : VariantFor(set, Fp32Scalar, Fp32Avx2, Fp32Avx512);
}

// Packs the rows of one panel (16, or fewer in the last panel), 16 by 16 words at a time, so that
// both source and panel are accessed in whole cache lines.
template <typename T>
void PackPanel(std::span<const T* const> rows, int64_t depth, uint32_t* panel) {
  constexpr int64_t kPerWord = 4 / sizeof(T);
  uint32_t block[16][16] = {};  // [row][word]
  for (int64_t first = 0; first < depth; first += 16 * kPerWord) {
    const int64_t here = std::min(16 * kPerWord, depth - first);
    const int64_t words = (here + kPerWord - 1) / kPerWord;
    for (size_t c = 0; c < rows.size(); ++c) {
      block[c][words - 1] = 0;  // zeroes the half past an odd depth
      std::memcpy(block[c], rows[c] + first, static_cast<size_t>(here) * sizeof(T));
    }
    uint32_t* out = panel + first / kPerWord * 16;
    for (int64_t w = 0; w < words; ++w) {
      for (int64_t c = 0; c < 16; ++c) out[w * 16 + c] = block[c][w];
    }
  }
}

}  // namespace

OperandType RoundedOperandType(InstructionSet set) {
  return set == InstructionSet::kAvx512Bf16 ? OperandType::kBf16 : OperandType::kFp32;
}

void StoreOperand(InstructionSet set, const float* row, int64_t n, bool round, OperandType type,
                  void* out) {
  if (!round && type == OperandType::kFp32) {
    if (out != row) std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  VariantFor(set, RoundScalar, RoundAvx2, RoundAvx512)(row, n, type, out);
}

void PackedMatrix::Reserve(int64_t columns, int64_t depth, bool is_bf16) {
  if (columns == columns_ && depth == depth_ && is_bf16 == is_bf16_) return;
  columns_ = columns;
  depth_ = depth;
  is_bf16_ = is_bf16;
  const int64_t words =
      is_bf16 ? Bf16Weights<16>::PanelWords(depth) : Fp32Weights<16>::PanelWords(depth);
  panels_ = AlignedBuffer(num_panels() * words * 4);
}

void PackedMatrix::Pack(std::span<const float* const> rows, int64_t depth) {
  Reserve(static_cast<int64_t>(rows.size()), depth, /*is_bf16=*/false);
  for (int64_t p = 0; p < num_panels(); ++p) {
    PackPanel(rows.subspan(p * 16, std::min<int64_t>(16, columns_ - p * 16)), depth,
              panels_.as<uint32_t>() + p * Fp32Weights<16>::PanelWords(depth));
  }
}

void PackedMatrix::Pack(std::span<const uint16_t* const> rows, int64_t depth) {
  Reserve(static_cast<int64_t>(rows.size()), depth, /*is_bf16=*/true);
  for (int64_t p = 0; p < num_panels(); ++p) {
    PackPanel(rows.subspan(p * 16, std::min<int64_t>(16, columns_ - p * 16)), depth,
              panels_.as<uint32_t>() + p * Bf16Weights<16>::PanelWords(depth));
  }
}

const void* PackedMatrix::Panel(int64_t panel) const {
  const int64_t words =
      is_bf16_ ? Bf16Weights<16>::PanelWords(depth_) : Fp32Weights<16>::PanelWords(depth_);
  return panels_.as<uint32_t>() + panel * words;
}

void PackedMatrix::MultiplyTile(InstructionSet set, int64_t tile, const Operand& x, int64_t rows,
                                float* out, int64_t out_stride, const void* next) const {
  const int64_t first = tile * kTilePanels;
  FindFunction(set, is_bf16_, x.type)(x.data, x.stride, rows, Panel(first),
                                      std::min(kTilePanels, num_panels() - first), depth_, out,
                                      out_stride, static_cast<const char*>(next));
}

void PackedMatrix::CopyColumn(int64_t column, float* out) const {
  const int64_t lane = column % kPanelColumns;
  if (is_bf16_) {
    const auto* panel = static_cast<const uint16_t*>(Panel(column / kPanelColumns));
    for (int64_t k = 0; k < depth_; ++k) {
      out[k] = Bf16ToFloat(panel[k / 2 * 32 + lane * 2 + k % 2]);
    }
  } else {
    const auto* panel = static_cast<const float*>(Panel(column / kPanelColumns));
    for (int64_t k = 0; k < depth_; ++k) out[k] = panel[k * 16 + lane];
  }
}

}  // namespace tandem
