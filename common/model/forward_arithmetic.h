// ForwardArithmetic: how many significand bits a forward keeps at each place where inference
// engines differ in precision. Ablation steps and injected faults (engine_faults.h) set it. Pure.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

// Rounds a float to fewer significand bits, while keeping the exponent range of fp32. Inline and
// branch-free, so that loops vectorise. Pure; the same bits on every machine.
//
// The implicit bit is counted.
inline constexpr int kFp32SignificandBits = 24;
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

namespace tandem::rollout {

// Significand bits, the implicit one included, kept by rounding to nearest even: 24 leaves fp32
// unchanged, 11 is fp16 without its range, 8 is bfloat16. This rounding comes before that of the
// engine's dtype (with ComputeDType::kBf16, body and KV are rounded to 8 bits anyway), so more bits
// than the dtype's have no effect there.
struct SitePrecision {
  int body_bits = kFp32SignificandBits;    // inputs of all linear layers except the head
  int head_bits = kFp32SignificandBits;    // inputs of the head, and the logits
  int kv_bits = kFp32SignificandBits;      // rotated keys and values, as written to the cache
  int rotary_bits = kFp32SignificandBits;  // the angle, position x inverse frequency: its error
                                           // grows with position

  friend bool operator==(const SitePrecision&, const SitePrecision&) = default;
};

// Quantises keys and values at positions >= `from_position` to symmetric integers of `bits` bits,
// with one scale per head vector: x -> s round(x / s), s = max |x| / (2^(bits - 1) - 1).
struct KvQuantisation {
  int bits = 0;  // 0: off; else at least 2
  int64_t from_position = 0;

  friend bool operator==(const KvQuantisation&, const KvQuantisation&) = default;
};

// How a forward rounds beyond what its dtype does; by default nowhere.
struct ForwardArithmetic {
  SitePrecision precision;
  KvQuantisation kv_quantisation;

  friend bool operator==(const ForwardArithmetic&, const ForwardArithmetic&) = default;
};

}  // namespace tandem::rollout
