#include "common/base/check.h"
#include "common/matrix/panel_kernels.h"
#include "common/tensor/vector16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Products of fp32 and bf16 rows with int4 weights. A group's values are multiplied and summed as
// whole numbers in floating point, and its sum is added to the output's times the group's scale.
//
// Invariant: as in wide_kernels.cc; an output adds its groups in order, and a group its k in order.
namespace tandem {
namespace {

constexpr int64_t kPerWord = 8;  // weights of one output feature in a word

// Bit positions of k, k + 1, ..., k + 7 in a word.
constexpr int kShifts[kPerWord] = {0, 16, 8, 24, 4, 20, 12, 28};

// Any instruction set, fp32 rows. kRows rows times one panel of 16 / kWidth vectors.
template <int kRows, int kWidth>
TANDEM_INLINE void Int4Tile(const PanelTask& task, const TaskRows& rows, int64_t panel) {
  using Vector = Lanes<kWidth>;
  constexpr int kParts = 16 / kWidth;
  const float* x = static_cast<const float*>(task.x.data) + rows.first * task.x.stride;
  Ahead ahead(task, rows, task.depth / kPerWord);
  const auto* words = reinterpret_cast<const uint32_t*>(task.panels + panel * task.panel_bytes);
  const auto* scales = reinterpret_cast<const uint16_t*>(words + Int4PanelWords(task.depth));
  typename Vector::Float sums[kRows][kParts] = {};
  for (int64_t begin = 0; begin < task.depth; begin += task.group) {
    const int64_t end = begin + task.group < task.depth ? begin + task.group : task.depth;
    typename Vector::Float parts[kRows][kParts] = {};
    for (int64_t k = begin; k < end; k += kPerWord) {
      ahead.Fetch();
#pragma GCC unroll 16
      for (int i = 0; i < kPerWord; ++i) {
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p) {
          const typename Vector::Word nibbles =
              (Vector::LoadWords(words + k * 2 + p * kWidth) >> kShifts[i]) & 15u;
          const typename Vector::Float w =
              __builtin_convertvector((typename Vector::Int)nibbles, typename Vector::Float) - 8.0f;
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) parts[r][p] += x[r * task.x.stride + k + i] * w;
        }
      }
    }
#pragma GCC unroll 16
    for (int p = 0; p < kParts; ++p) {
      const typename Vector::Float scale =
          Vector::Load(scales + begin / task.group * 16 + p * kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sums[r][p] += parts[r][p] * scale;
    }
  }
  float* out = task.out + rows.first * task.out_stride + panel * 16;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kParts; ++p) {
      Vector::Store(out + r * task.out_stride + p * kWidth, sums[r][p]);
    }
  }
}

#define TANDEM_DEFINE_INT4(name, target, most_rows, width)                         \
  struct name {                                                                    \
    static constexpr int kMostRows = most_rows;                                    \
    template <int kRows>                                                           \
    target static void Tile(const PanelTask& task, const TaskRows& rows) {         \
      for (int64_t panel = 0; panel < task.num_panels; ++panel) {                  \
        Int4Tile<kRows, width>(task, rows.OfPanel(panel, task.num_panels), panel); \
      }                                                                            \
    }                                                                              \
  };

TANDEM_DEFINE_INT4(Int4Scalar, , 2, 4)
TANDEM_DEFINE_INT4(Int4Avx2, TANDEM_TARGET_AVX2, 3, 8)
TANDEM_DEFINE_INT4(Int4Avx512, TANDEM_TARGET_AVX512, 8, 16)

#if defined(__x86_64__)
// bf16 rows: four pairs of weights per word come out of a table of bf16, which has every entry twice
// because its index is five bits wide.
typedef uint16_t Halves __attribute__((vector_size(64)));

template <int kRows, int kVectors>
TANDEM_TARGET_AVX512_BF16 TANDEM_INLINE void Int4PairsTile(const PanelTask& task,
                                                           const TaskRows& rows) {
  alignas(64) static constexpr uint16_t kTable[32] = {
      0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
      0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
      0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
  const __m512i table = _mm512_load_si512(kTable);
  const int64_t x_stride = task.x.stride / 2;
  const uint32_t* x = static_cast<const uint32_t*>(task.x.data) + rows.first * x_stride;
  Ahead ahead(task, rows, task.depth / kPerWord);
  const char* const panels = task.panels;
  const int64_t scales = Int4PanelWords(task.depth) * 4;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t begin = 0; begin < task.depth; begin += task.group) {
    const int64_t end = begin + task.group < task.depth ? begin + task.group : task.depth;
    __m512 parts[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) parts[r][v] = _mm512_setzero_ps();
    }
    for (int64_t k = begin; k < end; k += kPerWord) {
      __m512i words[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        words[v] = _mm512_load_si512(panels + v * task.panel_bytes + k * 8);
      }
      ahead.Fetch();
#pragma GCC unroll 16
      for (int pair = 0; pair < 4; ++pair) {
        __m512bh w[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const auto shifted = (__m512i)((Halves)words[v] >> kShifts[2 * pair]);
          w[v] = (__m512bh)_mm512_permutexvar_epi16(shifted, table);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m512bh a =
              (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r * x_stride + k / 2 + pair]));
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) parts[r][v] = _mm512_dpbf16_ps(parts[r][v], a, w[v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(
          panels + v * task.panel_bytes + scales + begin / task.group * 32));
      const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sums[r][v] = _mm512_fmadd_ps(parts[r][v], scale, sums[r][v]);
    }
  }
  float* out = task.out + rows.first * task.out_stride;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(out + r * task.out_stride + v * 16, sums[r][v]);
    }
  }
}

struct Int4Pairs {
  static constexpr int kMostRows = 6;
  template <int kRows>
  TANDEM_TARGET_AVX512_BF16 static void Tile(const PanelTask& task, const TaskRows& rows) {
    task.num_panels == 2 ? Int4PairsTile<kRows, 2>(task, rows)
                         : Int4PairsTile<kRows, 1>(task, rows);
  }
};
#endif

}  // namespace

PanelsFunction* Int4Panels(InstructionSet set, OperandType operand) {
  if (operand == OperandType::kBf16) {
    TANDEM_CHECK(set == InstructionSet::kAvx512Bf16);
#if defined(__x86_64__)
    return MultiplyRows<Int4Pairs>;
#endif
  }
  TANDEM_CHECK(operand == OperandType::kFp32);
  return VariantFor(set, MultiplyRows<Int4Scalar>, MultiplyRows<Int4Avx2>,
                    MultiplyRows<Int4Avx512>);
}

}  // namespace tandem
