#include "common/matrix/operand.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/matrix/quantise.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/vector16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

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
void SumBlocks(const int8_t* values, int64_t n, int32_t* sums) {
  sums[0] = 0;
  for (int64_t first = 0, block = 1; first < n; first += kSumBlock, ++block) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kSumBlock; ++i) sum += values[first + i];
    sums[block] = sum;
    sums[0] += sum;
  }
}

#if defined(__x86_64__)
// RoundRow in AVX-512, by intrinsics: gcc 12 takes vectors of half the size, which wait for the
// whole ones that were stored just before. The same numbers: see CutToBf16.
TANDEM_TARGET_AVX512 void RoundAvx512(const float* row, int64_t n, OperandType type, void* out) {
  const auto splat = [](uint32_t x)
                         TANDEM_TARGET_AVX512 { return _mm512_set1_epi32(static_cast<int>(x)); };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i bits = _mm512_loadu_si512(row + i);
    const __m512i cut = _mm512_srli_epi32(bits, 16);
    const __m512i added = _mm512_add_epi32(_mm512_and_si512(cut, splat(1)), splat(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, added), 16);
    const __mmask16 overflows =
        _mm512_cmpeq_epi32_mask(_mm512_and_si512(rounded, splat(0x7fff)), splat(0x7f80));
    const __mmask16 is_special =
        _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, splat(0x7f800000u)), splat(0x7f800000u));
    const __mmask16 is_nan = is_special & _mm512_test_epi32_mask(bits, splat(0x007fffffu));
    __m512i result = _mm512_mask_mov_epi32(rounded, overflows | is_special, cut);
    result = _mm512_mask_or_epi32(result, is_nan, result, splat(0x40));
    if (type == OperandType::kBf16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(out) + i),
                          _mm512_cvtepi32_epi16(result));
    } else {
      _mm512_storeu_si512(static_cast<float*>(out) + i, _mm512_slli_epi32(result, 16));
    }
  }
  if (i == n) return;
  RoundRow(row + i, n - i, type, static_cast<char*>(out) + i * OperandBytes(type));
}

// QuantiseInt8 in AVX-512: the same numbers, because every operation is one that both have.
TANDEM_TARGET_AVX512 float QuantiseAvx512(const float* row, int64_t n, int8_t* values,
                                          int32_t* sums) {
  const __m512i size_bits = _mm512_set1_epi32(0x7fffffff);
  const auto tail = [](int64_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
  };
  __m512i largest_bits = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 16) {
    const __m512i bits = _mm512_maskz_loadu_epi32(tail(n - i), row + i);
    largest_bits = _mm512_max_epu32(largest_bits, _mm512_and_si512(bits, size_bits));
  }
  const auto largest = std::bit_cast<float>(_mm512_reduce_max_epu32(largest_bits));
  const float scale = std::isfinite(largest) ? largest / 127.0f : 0.0f;
  sums[0] = 0;
  if (!(scale > 0)) {
    std::fill_n(values, n, int8_t{0});
    std::fill_n(sums, Int8Sums(n), 0);
    return std::isfinite(largest) ? scale : std::numeric_limits<float>::quiet_NaN();
  }
  const __m512 divisor = _mm512_set1_ps(scale);
  __m512i total = _mm512_setzero_si512();
  for (int64_t first = 0, block = 1; first < n; first += kSumBlock, ++block) {
    __m512i block_sum = _mm512_setzero_si512();
    for (int64_t i = first; i < std::min(n, first + kSumBlock); i += 16) {
      const __mmask16 mask = tail(n - i);
      const __m512 x = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, row + i), divisor);
      const __m512i rounded = _mm512_cvtps_epi32(x);  // to nearest even
      const __m512i value = _mm512_min_epi32(_mm512_max_epi32(rounded, _mm512_set1_epi32(-127)),
                                             _mm512_set1_epi32(127));
      // Also past the end, where x is 0: masked stores of bytes are slow.
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), _mm512_cvtepi32_epi8(value));
      block_sum = _mm512_add_epi32(block_sum, value);
    }
    total = _mm512_add_epi32(total, block_sum);
    sums[block] = _mm512_reduce_add_epi32(block_sum);
  }
  sums[0] = _mm512_reduce_add_epi32(total);
  return scale;
}
#else
void RoundAvx512(const float* row, int64_t n, OperandType type, void* out) {
  RoundRow(row, n, type, out);
}
#endif

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

float StoreInt8Operand(InstructionSet set, const float* row, int64_t n, int8_t* out,
                       int32_t* sums) {
  std::fill(out + n, out + Int8Stride(n), int8_t{0});
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512 || set == InstructionSet::kAvx512Bf16) {
    return QuantiseAvx512(row, n, out, sums);
  }
#endif
  const float scale = QuantiseInt8(row, n, out);
  SumBlocks(out, n, sums);
  return scale;
}

void StoreInt16Operand(const float* row, int64_t n, int8_t* out, float* scales, int32_t* sums) {
  constexpr float kLargest = 127 * 256 + 127;
  const int64_t stride = Int8Stride(n);
  std::fill_n(out, 2 * stride, int8_t{0});
  const float largest = LargestSize(row, n);
  const float scale = std::isfinite(largest) ? largest / kLargest : 0.0f;
  const bool finite = std::isfinite(largest);
  if (scale > 0) {
    for (int64_t i = 0; i < n; ++i) {
      const float value = std::min(std::max(std::rint(row[i] / scale), -kLargest), kLargest);
      const auto q = static_cast<int32_t>(value);
      const int32_t low = (q + 128 + 65536) % 256 - 128;
      out[i] = static_cast<int8_t>((q - low) / 256);
      out[stride + i] = static_cast<int8_t>(low);
    }
  }
  SumBlocks(out, n, sums);
  SumBlocks(out + stride, n, sums + Int8Sums(n));
  scales[0] = finite ? 256 * scale : std::numeric_limits<float>::quiet_NaN();
  scales[1] = finite ? scale : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace tandem
