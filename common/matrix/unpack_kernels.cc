#include "common/matrix/panel_kernels.h"
#include "common/tensor/vector16.h"

// Bytes of weights as bf16, and the scales of their outputs. Every value of int8 and of e4m3 is a
// value of bf16, so nothing is rounded, and all instruction sets write the same words.
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

template <bool kFp8, int kWidth>
TANDEM_INLINE void UnpackPanels(const PanelTask& task, uint32_t* out) {
  using Vector = Lanes<kWidth>;
  const int64_t pairs = WholeWords(task.depth, 2), count = WholeWords(task.depth, 4);
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const auto* words = reinterpret_cast<const uint32_t*>(task.panels + p * task.panel_bytes);
    const char* next = task.next != nullptr ? task.next + p * task.panel_bytes : nullptr;
    uint32_t* to = out + p * pairs * 16;
    for (int64_t i = 0; i < count; ++i) {
      Fetch(next, i * 64);
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

#define TANDEM_DEFINE_UNPACK(set, target, width)                      \
  target void UnpackInt8##set(const PanelTask& task, uint32_t* out) { \
    UnpackPanels<false, width>(task, out);                            \
  }                                                                   \
  target void UnpackFp8##set(const PanelTask& task, uint32_t* out) {  \
    UnpackPanels<true, width>(task, out);                             \
  }                                                                   \
  target void Scale##set(const PanelTask& task) { ScaleBody(task); }

TANDEM_DEFINE_UNPACK(Scalar, , 4)
TANDEM_DEFINE_UNPACK(Avx2, TANDEM_TARGET_AVX2, 8)
TANDEM_DEFINE_UNPACK(Avx512, TANDEM_TARGET_AVX512, 16)

}  // namespace

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
