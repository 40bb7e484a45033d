// SitePrecision, KvQuantisation: how many significand bits are kept at each place where engines
// differ in precision. A rung of the ladder, and dials of the injected faults (engine_faults.h).
// Pure.
#ifndef TANDEM_COMMON_MODEL_SITE_PRECISION_H_
#define TANDEM_COMMON_MODEL_SITE_PRECISION_H_

#include <cstdint>

#include "common/tensor/significand_rounding.h"

namespace tandem::rollout {

// Bits with the implicit one, kept by rounding to nearest even: 24 leaves fp32 untouched, 11 is
// fp16 without its range, 8 is bfloat16. What the engine's dtype rounds anyway
// (ComputeDType::kBf16: body and KV to 8) is rounded after this, so more bits than the dtype's
// change nothing there.
struct SitePrecision {
  int body_bits = kFp32SignificandBits;    // inputs of all linear layers but the head
  int head_bits = kFp32SignificandBits;    // inputs of the head, and its logits
  int kv_bits = kFp32SignificandBits;      // keys (rotated) and values, as they are written
  int rotary_bits = kFp32SignificandBits;  // the angle, position x inverse frequency: its error
                                           // grows with position

  friend bool operator==(const SitePrecision&, const SitePrecision&) = default;
};

// Keys and values at positions >= `from_position` as symmetric integers of `bits` bits, one scale
// for each head vector: x -> s round(x / s), s = max |x| / (2^(bits - 1) - 1).
struct KvQuantisation {
  int bits = 0;  // 0: off; else at least 2
  int64_t from_position = 0;

  friend bool operator==(const KvQuantisation&, const KvQuantisation&) = default;
};

}  // namespace tandem::rollout

#endif  // TANDEM_COMMON_MODEL_SITE_PRECISION_H_
