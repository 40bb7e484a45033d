// The 8-bit float e4m3 of the OCP specification ("8-bit Floating Point", revision 1.0): sign, four
// bits of exponent with bias 7, three of mantissa; no infinity, 0x7f is NaN, the largest value is
// 448. Inline and branch-free, so that loops vectorise. Pure; the same bits on every machine.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

inline constexpr float kLargestE4m3 = 448.0f;

// A stored code, as a type of its own.
struct E4m3 {
  uint8_t code;
};

// The nearest e4m3 of a finite value, ties to even; values past 448 become 448.
inline uint8_t NearestE4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const float size = std::bit_cast<float>(bits & 0x7fffffffu);
  // Below 2^-6, codes count units of 2^-9. Adding 1.5 * 2^23 units rounds to a whole number of them.
  const float counted = (size < 0.015625f ? size : 0.0f) + 24576.0f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(counted) - std::bit_cast<uint32_t>(24576.0f);
  // Above, the upper bits of the float: cut to three bits of mantissa, with bias 7 for 127.
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const uint32_t normal = rounded - (120u << 3);
  const uint32_t code = size < 0.015625f ? subnormal : (normal > 0x7eu ? 0x7eu : normal);
  return static_cast<uint8_t>(sign | code);
}

// The value of a code that is not NaN.
inline float E4m3ToFloat(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const float subnormal = static_cast<float>(magnitude) * 0.001953125f;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float size = magnitude < 8 ? subnormal : normal;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | sign);
}

}  // namespace tandem
