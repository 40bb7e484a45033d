// fp32 -> bfloat16 bits and back, one element at a time: the pushes' cast, exported models, the
// engine's KV cache. Inline and branch-free, so that loops over them vectorise; constexpr, so that
// kernels may call them (nvcc's --expt-relaxed-constexpr). Pure; the same bits on every machine.
//
//   nearest  to nearest, ties to even: an update below half a unit in the last place is swallowed
//   dither   each element has a fixed threshold in [0, 1) units, from a hash of tensor name and
//            index, and rounds away from zero when its remainder is over it: unbiased over
//            elements, reproducible, and values that did not move give the same bits
//
// NaN and infinity stay what they are; a finite value stays finite.
#ifndef TANDEM_COMMON_TENSOR_BF16_ROUNDING_H_
#define TANDEM_COMMON_TENSOR_BF16_ROUNDING_H_

#include <bit>
#include <cstdint>
#include <string_view>

namespace tandem {

// Adds `added`, in 65536ths of a unit, and cuts off.
constexpr uint16_t CutToBf16(float value, uint32_t added) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  const uint32_t rounded = (bits + added) >> 16;
  const uint32_t finite = (rounded & 0x7fffu) == 0x7f80u ? bits >> 16 : rounded;
  const uint32_t nan_bit = (bits & 0x007fffffu) != 0 ? 0x40u : 0u;  // a NaN stays one
  return static_cast<uint16_t>(is_finite ? finite : (bits >> 16) | nan_bit);
}

constexpr uint16_t NearestBf16(float value) {
  return CutToBf16(value, 0x7fffu + ((std::bit_cast<uint32_t>(value) >> 16) & 1u));
}

// The float that the bits stand for; exact.
constexpr float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// FNV-1a: written out because thresholds must be the same on every machine and library version.
inline uint64_t DitherNameHash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// Uniform in [0, 65536) (splitmix64's mixing).
constexpr uint32_t DitherThreshold(uint64_t name_hash, uint64_t index) {
  uint64_t x = name_hash + index * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 48);
}

// The low 16 bits are the remainder in 65536ths of a unit. Adding 65535 - threshold carries exactly
// when remainder > threshold: with a uniform threshold, with probability remainder / 65536.
constexpr uint16_t DitherBf16(float value, uint64_t name_hash, uint64_t index) {
  return CutToBf16(value, 65535u - DitherThreshold(name_hash, index));
}

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_BF16_ROUNDING_H_
