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
// shapes (1 to 12 rows; 1 or 2 panels) decide what is computed together, and never the
// order of a sum. kAvx512Bf16 with bf16 operands adds pairs of k in one instruction, and therefore
// has bits of its own.
namespace tandem {
namespace {

// A tile is kRows x kVectors vectors of 16 sums, each in as many registers as the instruction set
// needs for it: 16 / kWidth.
template <int kWidth>
struct Fp32Weights {
  using Vector = Lanes<kWidth>;
  // Computes out[0 .. kRows)[0 .. 16 kVectors) of one tile.
  template <int kRows, int kVectors>
  static TANDEM_INLINE void Tile(const PanelTask& task, const TaskRows& rows, int64_t panel) {
    const int64_t depth = task.depth, x_stride = task.x.stride, out_stride = task.out_stride;
    const float* x = static_cast<const float*>(task.x.data) + rows.first * x_stride;
    const auto* panels = reinterpret_cast<const float*>(task.panels + panel * task.panel_bytes);
    float* out = task.out + rows.first * out_stride + panel * 16;
    constexpr int kParts = 16 / kWidth;
    typename Vector::Float sums[kRows][kVectors * kParts] = {};
    Ahead ahead(task, rows, depth);
    for (int64_t k = 0; k < depth; ++k) {
      typename Vector::Float w[kVectors * kParts];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) {
          w[v * kParts + p] = Vector::Load(panels + (v * depth + k) * 16 + p * kWidth);
        }
      }
      ahead.Fetch();
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
  using Vector = Lanes<kWidth>;
  template <int kRows, int kVectors>
  static TANDEM_INLINE void Tile(const PanelTask& task, const TaskRows& rows, int64_t panel) {
    const int64_t depth = task.depth, x_stride = task.x.stride, out_stride = task.out_stride;
    const float* x = static_cast<const float*>(task.x.data) + rows.first * x_stride;
    const auto* panels = reinterpret_cast<const uint32_t*>(task.panels + panel * task.panel_bytes);
    float* out = task.out + rows.first * out_stride + panel * 16;
    constexpr int kParts = 16 / kWidth;
    typename Vector::Float sums[kRows][kVectors * kParts] = {};
    const int64_t pairs = (depth + 1) / 2;
    Ahead ahead(task, rows, pairs);
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
      ahead.Fetch();
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

// Some rows times one or two panels, kVectors at a time.
template <typename Kind, int kRows, int kVectors>
TANDEM_INLINE void Panels(const PanelTask& task, const TaskRows& rows) {
  if (kVectors == 2 && task.num_panels == 2) {
    Kind::template Tile<kRows, 2>(task, rows, 0);
    return;
  }
  for (int64_t p = 0; p < task.num_panels; ++p) {
    Kind::template Tile<kRows, 1>(task, rows.OfPanel(p, task.num_panels), p);
  }
}

#define TANDEM_DEFINE_PANELS(name, target, kind, most_rows, vectors)    \
  struct name {                                                         \
    static constexpr int kMostRows = most_rows;                         \
    template <int kRows>                                                \
    target static void Tile(const PanelTask& task, const TaskRows& r) { \
      Panels<kind, kRows, vectors>(task, r);                            \
    }                                                                   \
  };

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
TANDEM_TARGET_AVX512_BF16 TANDEM_INLINE void TilePairs(const PanelTask& task,
                                                       const TaskRows& rows) {
  const int64_t x_stride = task.x.stride / 2, pairs = task.depth / 2;
  const uint32_t* x = static_cast<const uint32_t*>(task.x.data) + rows.first * x_stride;
  const auto* panels = reinterpret_cast<const uint32_t*>(task.panels);
  Ahead ahead(task, rows, pairs);
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512bh w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      w[v] = (__m512bh)_mm512_load_si512(panels + (v * pairs + pair) * 16);
    }
    ahead.Fetch();
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r * x_stride + pair]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], a, w[v]);
    }
  }
  float* out = task.out + rows.first * task.out_stride;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(out + r * task.out_stride + v * 16, sums[r][v]);
    }
  }
}

struct PairsAvx512Bf16 {
  static constexpr int kMostRows = 12;
  template <int kRows>
  TANDEM_TARGET_AVX512_BF16 static void Tile(const PanelTask& task, const TaskRows& rows) {
    task.num_panels == 2 ? TilePairs<kRows, 2>(task, rows) : TilePairs<kRows, 1>(task, rows);
  }
};
#endif

}  // namespace

PanelsFunction* WidePanels(InstructionSet set, bool bf16_weights, OperandType operand) {
  if (operand == OperandType::kBf16) {
    TANDEM_CHECK(bf16_weights && set == InstructionSet::kAvx512Bf16);
#if defined(__x86_64__)
    return MultiplyRows<PairsAvx512Bf16>;
#endif
  }
  TANDEM_CHECK(operand == OperandType::kFp32);
  return bf16_weights ? VariantFor(set, MultiplyRows<Bf16Scalar>, MultiplyRows<Bf16Avx2>,
                                   MultiplyRows<Bf16Avx512>)
                      : VariantFor(set, MultiplyRows<Fp32Scalar>, MultiplyRows<Fp32Avx2>,
                                   MultiplyRows<Fp32Avx512>);
}

}  // namespace tandem
