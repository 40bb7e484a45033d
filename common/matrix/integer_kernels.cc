#include "common/base/check.h"
#include "common/matrix/panel_kernels.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/vector16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Products of int8 rows with int8 and int4 weights. Four products of a byte of weights, stored as
// unsigned by adding 128 (or 8), and a byte of the row are added to an integer in one instruction
// (VNNI), or in a few. What the offset added is known from the row's sums, and is subtracted.
//
// Invariant: integer sums are exact, so their order is free. What follows is in a fixed order for
// each output: for int8, ((float) sum * weight's scale) * row's scale; for int4 the groups in order,
// each (float) sum * group's scale, and then the row's scale. No operation is fused. All instruction
// sets give the same bits.
namespace tandem {
namespace {

constexpr int64_t kBytesOffset = 128, kInt4Offset = 8;

// The sum of x over a group that begins at `begin`.
TANDEM_INLINE int32_t GroupSum(const int32_t* sums, int64_t begin, int64_t end) {
  int32_t sum = 0;
  for (int64_t k = begin; k < end; k += kSumBlock) sum += sums[1 + k / kSumBlock];
  return sum;
}

// ------------------------------------------------------------------------------ any machine

typedef int32_t Words __attribute__((may_alias, aligned(4)));  // four bytes of x

struct RowOfBytes {
  const int8_t* x;
  const int32_t* sums;
  float scale;
};

RowOfBytes RowAt(const Operand& x, int64_t row, int64_t depth) {
  return {static_cast<const int8_t*>(x.data) + row * x.stride, x.sums + row * Int8Sums(depth),
          x.scales[row]};
}

void IntegerPlain(const PanelTask& task) {
  for (int64_t r = 0; r < task.rows; ++r) {
    const RowOfBytes row = RowAt(task.x, r, task.depth);
    for (int64_t p = 0; p < task.num_panels; ++p) {
      const char* panel = task.panels + p * task.panel_bytes;
      const auto* scales = reinterpret_cast<const float*>(panel + BytesPanelWords(task.depth) * 4);
      for (int64_t c = 0; c < 16; ++c) {
        int32_t sum = 0;
        for (int64_t k = 0; k < task.depth; ++k) {
          sum += row.x[k] * static_cast<uint8_t>(panel[k / 4 * 64 + c * 4 + k % 4]);
        }
        sum -= static_cast<int32_t>(kBytesOffset) * row.sums[0];
        task.out[r * task.out_stride + p * 16 + c] =
            static_cast<float>(sum) * scales[c] * row.scale;
      }
    }
  }
}

void IntegerPlainInt4(const PanelTask& task) {
  constexpr int kNibbles[8] = {0, 4, 2, 6, 1, 5, 3, 7};
  for (int64_t r = 0; r < task.rows; ++r) {
    const RowOfBytes row = RowAt(task.x, r, task.depth);
    for (int64_t p = 0; p < task.num_panels; ++p) {
      const auto* words = reinterpret_cast<const uint32_t*>(task.panels + p * task.panel_bytes);
      const auto* scales = reinterpret_cast<const uint16_t*>(words + Int4PanelWords(task.depth));
      for (int64_t c = 0; c < 16; ++c) {
        float total = 0;
        for (int64_t begin = 0; begin < task.depth; begin += task.group) {
          const int64_t end = begin + task.group < task.depth ? begin + task.group : task.depth;
          int32_t sum = 0;
          for (int64_t k = begin; k < end; ++k) {
            const uint32_t word = words[k / 8 * 16 + c];
            sum += row.x[k] * (static_cast<int32_t>((word >> (4 * kNibbles[k % 8])) & 15u) - 8);
          }
          const float part =
              static_cast<float>(sum) * Bf16ToFloat(scales[begin / task.group * 16 + c]);
          total = total + part;
        }
        task.out[r * task.out_stride + p * 16 + c] = total * row.scale;
      }
    }
  }
}

#if defined(__x86_64__)
// ------------------------------------------------------------------------------ AVX2

// sum += the four products of a word of unsigned weights with a word of x. In 16 bits, because
// sums of two byte products do not fit the instruction that multiplies bytes.
TANDEM_TARGET_AVX2 TANDEM_INLINE __m256i Dot4Avx2(__m256i sum, __m256i weights, __m256i x_even,
                                                  __m256i x_odd) {
  const __m256i even = _mm256_and_si256(weights, _mm256_set1_epi16(0x00ff));
  const __m256i odd = _mm256_srli_epi16(weights, 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, x_even));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, x_odd));
}

// A word of four x, as 16-bit pairs of bytes 0 and 2, and of bytes 1 and 3.
struct WordOfX {
  __m256i even, odd;
};
TANDEM_TARGET_AVX2 TANDEM_INLINE WordOfX SplitX(const int8_t* x) {
  const __m256i word = _mm256_set1_epi32(*reinterpret_cast<const Words*>(x));
  return {_mm256_srai_epi16(_mm256_slli_epi16(word, 8), 8), _mm256_srai_epi16(word, 8)};
}

template <int kRows>
TANDEM_TARGET_AVX2 TANDEM_INLINE void IntegerTileAvx2(const PanelTask& task, int64_t first,
                                                      int64_t panel) {
  const char* weights = task.panels + panel * task.panel_bytes;
  const auto* x = static_cast<const int8_t*>(task.x.data) + first * task.x.stride;
  __m256i sums[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  for (int64_t k = 0; k < task.depth; k += 4) {
    const __m256i w0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(weights + k * 16));
    const __m256i w1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(weights + k * 16 + 32));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const WordOfX word = SplitX(x + r * task.x.stride + k);
      sums[r][0] = Dot4Avx2(sums[r][0], w0, word.even, word.odd);
      sums[r][1] = Dot4Avx2(sums[r][1], w1, word.even, word.odd);
    }
  }
  const auto* scales = reinterpret_cast<const float*>(weights + BytesPanelWords(task.depth) * 4);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const RowOfBytes row = RowAt(task.x, first + r, task.depth);
    const __m256i offset = _mm256_set1_epi32(static_cast<int32_t>(kBytesOffset) * row.sums[0]);
#pragma GCC unroll 16
    for (int half = 0; half < 2; ++half) {
      const __m256 value = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums[r][half], offset));
      const __m256 scaled = _mm256_mul_ps(value, _mm256_load_ps(scales + 8 * half));
      _mm256_storeu_ps(task.out + (first + r) * task.out_stride + panel * 16 + 8 * half,
                       _mm256_mul_ps(scaled, _mm256_set1_ps(row.scale)));
    }
  }
}

template <int kRows>
TANDEM_TARGET_AVX2 TANDEM_INLINE void IntegerTileInt4Avx2(const PanelTask& task, int64_t first,
                                                          int64_t panel) {
  const char* weights = task.panels + panel * task.panel_bytes;
  const char* scales = weights + Int4PanelWords(task.depth) * 4;
  const auto* x = static_cast<const int8_t*>(task.x.data) + first * task.x.stride;
  const __m256i low = _mm256_set1_epi8(0x0f);
  // Swaps the two middle bytes of each word, so that they are in the order of k.
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  __m256 totals[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) totals[r][0] = totals[r][1] = _mm256_setzero_ps();
  for (int64_t begin = 0; begin < task.depth; begin += task.group) {
    const int64_t end = begin + task.group < task.depth ? begin + task.group : task.depth;
    __m256i sums[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t k = begin; k < end; k += 8) {
#pragma GCC unroll 16
      for (int half = 0; half < 2; ++half) {
        const __m256i words = _mm256_shuffle_epi8(
            _mm256_load_si256(reinterpret_cast<const __m256i*>(weights + k * 8 + 32 * half)),
            order);
        const __m256i w0 = _mm256_and_si256(words, low);
        const __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(words, 4), low);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const WordOfX x0 = SplitX(x + r * task.x.stride + k);
          const WordOfX x1 = SplitX(x + r * task.x.stride + k + 4);
          sums[r][half] = Dot4Avx2(sums[r][half], w0, x0.even, x0.odd);
          sums[r][half] = Dot4Avx2(sums[r][half], w1, x1.even, x1.odd);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const RowOfBytes row = RowAt(task.x, first + r, task.depth);
      const __m256i offset =
          _mm256_set1_epi32(static_cast<int32_t>(kInt4Offset) * GroupSum(row.sums, begin, end));
#pragma GCC unroll 16
      for (int half = 0; half < 2; ++half) {
        const __m128i bits = _mm_load_si128(
            reinterpret_cast<const __m128i*>(scales + begin / task.group * 32 + 16 * half));
        const __m256 scale =
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
        const __m256 value = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums[r][half], offset));
        const __m256 part = _mm256_mul_ps(value, scale);
        totals[r][half] = _mm256_add_ps(totals[r][half], part);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const __m256 scale = _mm256_set1_ps(task.x.scales[first + r]);
    float* out = task.out + (first + r) * task.out_stride + panel * 16;
    _mm256_storeu_ps(out, _mm256_mul_ps(totals[r][0], scale));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(totals[r][1], scale));
  }
}

#define TANDEM_DEFINE_INTEGER_AVX2(name, tile)                                         \
  struct name {                                                                        \
    static constexpr int kMostRows = 3;                                                \
    template <int kRows>                                                               \
    TANDEM_TARGET_AVX2 static void Tile(const PanelTask& task, const TaskRows& rows) { \
      for (int64_t panel = 0; panel < task.num_panels; ++panel) {                      \
        tile<kRows>(task, rows.first, panel);                                          \
      }                                                                                \
    }                                                                                  \
  };
TANDEM_DEFINE_INTEGER_AVX2(IntegerAvx2, IntegerTileAvx2)
TANDEM_DEFINE_INTEGER_AVX2(IntegerInt4Avx2, IntegerTileInt4Avx2)

// ------------------------------------------------------------------------------ AVX-512 VNNI

// Leaves the integer sums in `out`. What follows is not part of it, because gcc 12 keeps the sums in
// registers only if nothing else is done with them.
template <int kRows, int kVectors>
TANDEM_TARGET_AVX512_VNNI TANDEM_INLINE void IntegerSumsVnni(const PanelTask& task,
                                                             const TaskRows& rows) {
  const int64_t x_stride = task.x.stride, depth = task.depth;
  const auto* x = static_cast<const int8_t*>(task.x.data) + rows.first * x_stride;
  const char* const panels = task.panels;
  const int64_t panel_bytes = task.panel_bytes;
  Ahead ahead(task, rows, WholeWords(depth, 4));
  __m512i sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < depth; k += 4) {
    __m512i w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      w[v] = _mm512_load_si512(panels + v * panel_bytes + k * 16);
    }
    ahead.Fetch();
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512i word = _mm512_set1_epi32(*reinterpret_cast<const Words*>(x + r * x_stride + k));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], w[v], word);
    }
  }
  float* out = task.out + rows.first * task.out_stride;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_si512(out + r * task.out_stride + v * 16, sums[r][v]);
    }
  }
}

// Integer sums in task.out become outputs.
TANDEM_TARGET_AVX512_VNNI void ScaleSumsVnni(const PanelTask& task) {
  for (int64_t panel = 0; panel < task.num_panels; ++panel) {
    const __m512 scales =
        _mm512_load_ps(task.panels + panel * task.panel_bytes + BytesPanelWords(task.depth) * 4);
    for (int64_t r = 0; r < task.rows; ++r) {
      const RowOfBytes row = RowAt(task.x, r, task.depth);
      float* out = task.out + r * task.out_stride + panel * 16;
      const __m512i offset = _mm512_set1_epi32(static_cast<int32_t>(kBytesOffset) * row.sums[0]);
      const __m512i sum = _mm512_sub_epi32(_mm512_loadu_si512(out), offset);
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scales);
      _mm512_storeu_ps(out, _mm512_mul_ps(scaled, _mm512_set1_ps(row.scale)));
    }
  }
}

template <int kRows, int kVectors>
TANDEM_TARGET_AVX512_VNNI TANDEM_INLINE void IntegerTileInt4Vnni(const PanelTask& task,
                                                                 const TaskRows& rows) {
  const int64_t first = rows.first;
  Ahead ahead(task, rows, task.depth / 8);
  const auto* x = static_cast<const int8_t*>(task.x.data) + first * task.x.stride;
  const int64_t scales_at = Int4PanelWords(task.depth) * 4;
  const __m512i low = _mm512_set1_epi8(0x0f);
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  __m512 totals[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) totals[r][v] = _mm512_setzero_ps();
  }
  for (int64_t begin = 0; begin < task.depth; begin += task.group) {
    const int64_t end = begin + task.group < task.depth ? begin + task.group : task.depth;
    __m512i sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const int32_t* of_row = task.x.sums + (first + r) * Int8Sums(task.depth);
      const int32_t offset = static_cast<int32_t>(kInt4Offset) * GroupSum(of_row, begin, end);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_set1_epi32(-offset);
    }
    for (int64_t k = begin; k < end; k += 8) {
      __m512i w0[kVectors], w1[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const __m512i words = _mm512_shuffle_epi8(
            _mm512_load_si512(task.panels + v * task.panel_bytes + k * 8), order);
        w0[v] = _mm512_and_si512(words, low);
        w1[v] = _mm512_and_si512(_mm512_srli_epi16(words, 4), low);
      }
      ahead.Fetch();
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto* words = reinterpret_cast<const Words*>(x + r * task.x.stride + k);
        const __m512i x0 = _mm512_set1_epi32(words[0]), x1 = _mm512_set1_epi32(words[1]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], w0[v], x0);
          sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], w1[v], x1);
        }
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(
          task.panels + v * task.panel_bytes + scales_at + begin / task.group * 32));
      const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][v]), scale);
        totals[r][v] = _mm512_add_ps(totals[r][v], part);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(task.x.scales[first + r]);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(task.out + (first + r) * task.out_stride + v * 16,
                       _mm512_mul_ps(totals[r][v], scale));
    }
  }
}

struct SumsVnni {
  static constexpr int kMostRows = 12;
  template <int kRows>
  TANDEM_TARGET_AVX512_VNNI static void Tile(const PanelTask& task, const TaskRows& rows) {
    task.num_panels == 2 ? IntegerSumsVnni<kRows, 2>(task, rows)
                         : IntegerSumsVnni<kRows, 1>(task, rows);
  }
};

void IntegerVnni(const PanelTask& task) {
  MultiplyRows<SumsVnni>(task);
  ScaleSumsVnni(task);
}

struct Int4Vnni {
  static constexpr int kMostRows = 6;
  template <int kRows>
  TANDEM_TARGET_AVX512_VNNI static void Tile(const PanelTask& task, const TaskRows& rows) {
    task.num_panels == 2 ? IntegerTileInt4Vnni<kRows, 2>(task, rows)
                         : IntegerTileInt4Vnni<kRows, 1>(task, rows);
  }
};
#endif

}  // namespace

PanelsFunction* IntegerPanels(InstructionSet set, bool int4_weights) {
#if defined(__x86_64__)
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni");
  if (set >= InstructionSet::kAvx512 && has_vnni) {
    return int4_weights ? MultiplyRows<Int4Vnni> : IntegerVnni;
  }
  if (set >= InstructionSet::kAvx2) {
    return int4_weights ? MultiplyRows<IntegerInt4Avx2> : MultiplyRows<IntegerAvx2>;
  }
#endif
  return int4_weights ? IntegerPlainInt4 : IntegerPlain;
}

}  // namespace tandem
