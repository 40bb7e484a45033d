// Rounds a float to fewer significand bits, while keeping the exponent range of fp32. Inline and
// branch-free, so that loops vectorise. Pure; the same bits on every machine.
#ifndef TANDEM_COMMON_TENSOR_SIGNIFICAND_ROUNDING_H_
#define TANDEM_COMMON_TENSOR_SIGNIFICAND_ROUNDING_H_

#include <bit>
#include <cstdint>

namespace tandem {

inline constexpr int kFp32SignificandBits = 24;  // the implicit bit included
inline constexpr int kLeastSignificandBits = 2;

// Rounds `value` to `bits` significand bits, in [kLeastSignificandBits, kFp32SignificandBits], to
// nearest, ties to even. 8 gives the values of bfloat16, 11 those of fp16 within its range. NaN and
// infinity are kept; a value that rounds past the largest float becomes infinite.
inline float RoundedToBits(float value, int bits) {
  const auto word = std::bit_cast<uint32_t>(value);
  const int cut = kFp32SignificandBits - bits;
  const uint32_t unit = 1u << cut;
  const uint32_t rounded =
      (word + (unit / 2 - 1u * (cut > 0)) + ((word >> cut) & (cut > 0))) & ~(unit - 1);
  const bool is_finite = (word & 0x7f800000u) != 0x7f800000u;
  return std::bit_cast<float>(is_finite ? rounded : word);
}

inline void RoundToBits(float* values, int64_t n, int bits) {
  for (int64_t i = 0; i < n; ++i) values[i] = RoundedToBits(values[i], bits);
}

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_SIGNIFICAND_ROUNDING_H_
