#include "common/base/check.h"
#include "common/matrix/panel_kernels.h"
#include "common/tensor/vector16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Products of fp32 and bf16 rows with weights of a byte each: int8 and e4m3. Every value of both is a
// value of bf16, so a product with them is one with a bf16 matrix, and an output's scale comes last.
// For a few rows the bytes are converted in registers; for more, a tile is unpacked once and then
// multiplied by the kernels of wide_kernels.cc. Both give the same bits: an output adds the same
// products in the same order.
namespace tandem {
namespace {

// The bits of (float) of byte `index` of each word, whose lower 16 are 0.
template <bool kFp8, int kWidth>
TANDEM_INLINE typename Lanes<kWidth>::Word FloatBits(typename Lanes<kWidth>::Word words,
                                                     int index) {
  using Vector = Lanes<kWidth>;
  const typename Vector::Word byte = (words >> (8 * index)) & 0xffu;
  if constexpr (kFp8) {
    // e4m3.h: subnormals count units of 2^-9, others have the exponent's bias 7 for 127.
    const typename Vector::Word magnitude = byte & 0x7fu;
    const typename Vector::Float counted =
        __builtin_convertvector((typename Vector::Int)magnitude, typename Vector::Float) *
        0.001953125f;
    const typename Vector::Word normal = (magnitude << 20) + (120u << 23);
    const auto is_small = (typename Vector::Int)magnitude < 8;
    const typename Vector::Word size =
        is_small ? __builtin_bit_cast(typename Vector::Word, counted) : normal;
    return size | ((byte & 0x80u) << 24);
  } else {
    return __builtin_bit_cast(
        typename Vector::Word,
        __builtin_convertvector((typename Vector::Int)byte, typename Vector::Float) - 128.0f);
  }
}

// kRows fp32 rows times kVectors panels, 16 / kWidth registers each.
template <bool kFp8, int kRows, int kVectors, int kWidth>
TANDEM_INLINE void BytesTile(const PanelTask& task, const TaskRows& rows, int64_t panel) {
  using Vector = Lanes<kWidth>;
  constexpr int kParts = 16 / kWidth;
  const int64_t depth = task.depth, x_stride = task.x.stride, panel_bytes = task.panel_bytes;
  const float* x = static_cast<const float*>(task.x.data) + rows.first * x_stride;
  Ahead ahead(task, rows, WholeWords(depth, 4));
  const char* panels = task.panels + panel * panel_bytes;
  typename Vector::Float sums[kRows][kVectors * kParts] = {};
  const auto add = [&](int64_t k, int count) __attribute__((always_inline)) {
    typename Vector::Word words[kVectors * kParts];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors * kParts; ++i) {
      words[i] = Vector::LoadWords(reinterpret_cast<const uint32_t*>(
          panels + i / kParts * panel_bytes + k * 16 + i % kParts * kWidth * 4));
    }
#pragma GCC unroll 4
    for (int j = 0; j < count; ++j) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors * kParts; ++i) {
        const auto w =
            __builtin_bit_cast(typename Vector::Float, FloatBits<kFp8, kWidth>(words[i], j));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r][i] += x[r * x_stride + k + j] * w;
      }
    }
  };
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    ahead.Fetch();
    add(k, 4);
  }
  if (k < depth) add(k, static_cast<int>(depth - k));
#pragma GCC unroll 8
  for (int i = 0; i < kVectors * kParts; ++i) {
    const auto* scales = reinterpret_cast<const float*>(panels + i / kParts * panel_bytes +
                                                        BytesPanelWords(depth) * 4);
    const typename Vector::Float scale = Vector::Load(scales + i % kParts * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vector::Store(task.out + (rows.first + r) * task.out_stride + panel * 16 + i * kWidth,
                    sums[r][i] * scale);
    }
  }
}

// Some fp32 rows times one or two panels, kVectors at a time.
template <bool kFp8, int kRows, int kVectors, int kWidth>
TANDEM_INLINE void BytesPanels(const PanelTask& task, const TaskRows& rows) {
  if (kVectors == 2 && task.num_panels == 2) {
    BytesTile<kFp8, kRows, kVectors, kWidth>(task, rows, 0);
    return;
  }
  for (int64_t p = 0; p < task.num_panels; ++p) {
    BytesTile<kFp8, kRows, 1, kWidth>(task, rows.OfPanel(p, task.num_panels), p);
  }
}

template <bool kFp8, int kWidth>
TANDEM_INLINE void UnpackPanels(const PanelTask& task, uint32_t* out) {
  using Vector = Lanes<kWidth>;
  const int64_t pairs = WholeWords(task.depth, 2), count = WholeWords(task.depth, 4);
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const auto* words = reinterpret_cast<const uint32_t*>(task.panels + p * task.panel_bytes);
    uint32_t* to = out + p * pairs * 16;
    for (int64_t i = 0; i < count; ++i) {
      for (int part = 0; part < 16; part += kWidth) {
        const typename Vector::Word four = Vector::LoadWords(words + i * 16 + part);
        for (int pair = 0; pair < 2; ++pair) {
          if (2 * i + pair >= pairs) break;
          const typename Vector::Word low = FloatBits<kFp8, kWidth>(four, 2 * pair);
          const typename Vector::Word high = FloatBits<kFp8, kWidth>(four, 2 * pair + 1);
          *reinterpret_cast<typename Vector::WordAligned*>(to + (2 * i + pair) * 16 + part) =
              (low >> 16) | high;
        }
      }
    }
  }
}

TANDEM_INLINE void ScaleBody(const PanelTask& task) {
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const auto* scales = reinterpret_cast<const float*>(task.panels + p * task.panel_bytes +
                                                        BytesPanelWords(task.depth) * 4);
    for (int64_t r = 0; r < task.rows; ++r) {
      float* out = task.out + r * task.out_stride + p * 16;
      for (int64_t c = 0; c < 16; ++c) out[c] *= scales[c];
    }
  }
}

#define TANDEM_DEFINE_BYTES(name, is_fp8, target, width, most_rows, vectors) \
  struct name {                                                              \
    static constexpr int kMostRows = most_rows;                              \
    template <int kRows>                                                     \
    target static void Tile(const PanelTask& task, const TaskRows& rows) {   \
      BytesPanels<is_fp8, kRows, vectors, width>(task, rows);                \
    }                                                                        \
  };                                                                         \
  target void Unpack##name(const PanelTask& task, uint32_t* out) {           \
    UnpackPanels<is_fp8, width>(task, out);                                  \
  }

#define TANDEM_DEFINE_UNPACK(set, target, width, rows, vectors)       \
  TANDEM_DEFINE_BYTES(Int8##set, false, target, width, rows, vectors) \
  TANDEM_DEFINE_BYTES(Fp8##set, true, target, width, rows, vectors)   \
  target void Scale##set(const PanelTask& task) { ScaleBody(task); }

TANDEM_DEFINE_UNPACK(Scalar, , 4, 1, 1)
TANDEM_DEFINE_UNPACK(Avx2, TANDEM_TARGET_AVX2, 8, 2, 1)
TANDEM_DEFINE_UNPACK(Avx512, TANDEM_TARGET_AVX512, 16, 4, 2)

#if defined(__x86_64__)
// The pairs of bytes from bit `shift` of each word on, as pairs of bf16. Not by value: clang refuses
// to return a vector to a function of another target.
template <bool kFp8>
TANDEM_INLINE void LoadPair(const char* from, uint32_t shift, __m512i& out) {
  const auto words = Lanes<16>::LoadWords(reinterpret_cast<const uint32_t*>(from)) >> shift;
  out = (__m512i)((FloatBits<kFp8, 16>(words, 0) >> 16) | FloatBits<kFp8, 16>(words, 1));
}

// kRows bf16 rows times kVectors panels.
template <bool kFp8, int kRows, int kVectors>
TANDEM_TARGET_AVX512_BF16 TANDEM_INLINE void BytePairsTile(const PanelTask& task,
                                                           const TaskRows& rows) {
  const int64_t x_stride = task.x.stride / 2, panel_bytes = task.panel_bytes;
  const uint32_t* x = static_cast<const uint32_t*>(task.x.data) + rows.first * x_stride;
  const char* panels = task.panels;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  const int64_t pairs = task.depth / 2;
  Ahead ahead(task, rows, pairs);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512bh w[kVectors];
    ahead.Fetch();
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      // Two pairs lie in a word: the second comes from its upper half.
      const char* from = panels + v * panel_bytes + pair / 2 * 64;
      __m512i values;
      LoadPair<kFp8>(from, static_cast<uint32_t>(pair % 2 * 16), values);
      w[v] = (__m512bh)values;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r * x_stride + pair]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], a, w[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const __m512 scale = _mm512_load_ps(panels + v * panel_bytes + BytesPanelWords(task.depth) * 4);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(task.out + (rows.first + r) * task.out_stride + v * 16,
                       _mm512_mul_ps(sums[r][v], scale));
    }
  }
}

template <bool kFp8>
struct BytePairs {
  static constexpr int kMostRows = 4;
  template <int kRows>
  TANDEM_TARGET_AVX512_BF16 static void Tile(const PanelTask& task, const TaskRows& rows) {
    task.num_panels == 2 ? BytePairsTile<kFp8, kRows, 2>(task, rows)
                         : BytePairsTile<kFp8, kRows, 1>(task, rows);
  }
};
#endif

}  // namespace

PanelsFunction* FewByteRowsPanels(InstructionSet set, bool is_fp8, OperandType operand) {
  if (operand == OperandType::kBf16) {
    TANDEM_CHECK(set == InstructionSet::kAvx512Bf16);
#if defined(__x86_64__)
    return is_fp8 ? MultiplyRows<BytePairs<true>> : MultiplyRows<BytePairs<false>>;
#endif
  }
  TANDEM_CHECK(operand == OperandType::kFp32);
  return is_fp8 ? VariantFor(set, MultiplyRows<Fp8Scalar>, MultiplyRows<Fp8Avx2>,
                             MultiplyRows<Fp8Avx512>)
                : VariantFor(set, MultiplyRows<Int8Scalar>, MultiplyRows<Int8Avx2>,
                             MultiplyRows<Int8Avx512>);
}

void UnpackBytes(InstructionSet set, bool is_fp8, const PanelTask& task, uint32_t* out) {
  if (is_fp8) {
    VariantFor(set, UnpackFp8Scalar, UnpackFp8Avx2, UnpackFp8Avx512)(task, out);
  } else {
    VariantFor(set, UnpackInt8Scalar, UnpackInt8Avx2, UnpackInt8Avx512)(task, out);
  }
}

void ScaleColumns(InstructionSet set, const PanelTask& task) {
  VariantFor(set, ScaleScalar, ScaleAvx2, ScaleAvx512)(task);
}

}  // namespace tandem
