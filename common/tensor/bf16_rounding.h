// Converts fp32 to bfloat16 bits and back, one element at a time, for the cast of pushes, exported
// models and the engine's KV cache. Inline and branch-free, so that loops vectorise; constexpr, so
// that kernels can call them (nvcc's --expt-relaxed-constexpr). Pure; the same bits on every
// machine.
//
//   nearest  round to nearest, ties to even; an update below half a unit in the last place is lost
//   dither   dithered (deterministic stochastic) rounding: each element has a fixed threshold in
//            [0, 1) units, from a hash of tensor name and index, and rounds away from zero if its
//            remainder exceeds it. It is unbiased over elements and reproducible, and values that
//            did not change give the same bits again
//
// NaN and infinity are kept, and a finite value stays finite.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace tandem {

// Adds `added`, in 65536ths of a unit, and truncates.
constexpr uint16_t CutToBf16(float value, uint32_t added) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  const uint32_t rounded = (bits + added) >> 16;
  const uint32_t finite = (rounded & 0x7fffu) == 0x7f80u ? bits >> 16 : rounded;
  const uint32_t nan_bit = (bits & 0x007fffffu) != 0 ? 0x40u : 0u;  // keeps a NaN a NaN
  return static_cast<uint16_t>(is_finite ? finite : (bits >> 16) | nan_bit);
}

constexpr uint16_t NearestBf16(float value) {
  return CutToBf16(value, 0x7fffu + ((std::bit_cast<uint32_t>(value) >> 16) & 1u));
}

// The float that the bits represent, exactly.
constexpr float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// FNV-1a, implemented here because thresholds must be the same on every machine and with every
// library version.
inline uint64_t DitherNameHash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// Uniform in [0, 65536), by the mixing function of SplitMix64.
constexpr uint32_t DitherThreshold(uint64_t name_hash, uint64_t index) {
  uint64_t x = name_hash + index * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 48);
}

// The low 16 bits of a float are the remainder, in 65536ths of a unit. Adding 65535 - threshold
// carries exactly if remainder > threshold; for a uniform threshold, with probability remainder /
// 65536.
constexpr uint16_t DitherBf16(float value, uint64_t name_hash, uint64_t index) {
  return CutToBf16(value, 65535u - DitherThreshold(name_hash, index));
}

}  // namespace tandem
