#include "common/base/check.h"
#include "common/matrix/panel_kernels.h"
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
TANDEM_INLINE void Panels(const PanelTask& task) {
  const auto* x = static_cast<const float*>(task.x.data);
  const auto* w = reinterpret_cast<const typename Kind::W*>(task.panels);
  if (kVectors == 2 && task.num_panels == 2) {
    Rows<Kind, kMaxRows, 2>(x, task.x.stride, task.rows, w, task.depth, task.out, task.out_stride,
                            task.next);
    return;
  }
  const int64_t words = task.panel_bytes / 4;
  for (int64_t p = 0; p < task.num_panels; ++p) {
    Rows<Kind, kMaxRows, 1>(x, task.x.stride, task.rows, w + p * words, task.depth,
                            task.out + p * 16, task.out_stride,
                            task.next != nullptr ? task.next + p * task.panel_bytes : nullptr);
  }
}

#define TANDEM_DEFINE_PANELS(name, target, kind, max_rows, vectors) \
  target void name(const PanelTask& task) { Panels<kind, max_rows, vectors>(task); }

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

TANDEM_TARGET_AVX512_BF16 void PairsAvx512Bf16(const PanelTask& task) {
  const auto* x = static_cast<const uint32_t*>(task.x.data);
  const auto* w = reinterpret_cast<const uint32_t*>(task.panels);
  if (task.num_panels == 2) {
    RowsPairs<2>(x, task.x.stride / 2, task.rows, w, task.depth / 2, task.out, task.out_stride,
                 task.next);
  } else {
    RowsPairs<1>(x, task.x.stride / 2, task.rows, w, task.depth / 2, task.out, task.out_stride,
                 task.next);
  }
}
#else
void PairsAvx512Bf16(const PanelTask&) { TANDEM_CHECK(false); }
#endif

}  // namespace

PanelsFunction* WidePanels(InstructionSet set, bool bf16_weights, OperandType operand) {
  if (operand == OperandType::kBf16) {
    TANDEM_CHECK(bf16_weights && set == InstructionSet::kAvx512Bf16);
    return PairsAvx512Bf16;
  }
  TANDEM_CHECK(operand == OperandType::kFp32);
  return bf16_weights ? VariantFor(set, Bf16Scalar, Bf16Avx2, Bf16Avx512)
                      : VariantFor(set, Fp32Scalar, Fp32Avx2, Fp32Avx512);
}

}  // namespace tandem
