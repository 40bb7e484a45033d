// Stateless random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC 2011). A number is a function of (seed, completion, position) alone, so it does not
// depend on batch, slot or arrival order.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::rollout {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * counter[0];
    const uint64_t p1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The middle of one of 2^52 equal parts of (0, 1), chosen by the upper bits. With 2^53 parts the
// largest result would round to 1.
inline double UniformFromBits(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1.0p-52;
}

// One uniform in (0, 1) for the token at `position` (from 0) of completion `index`.
inline double UniformDraw(uint64_t seed, uint32_t index, uint32_t position) {
  const PhiloxCounter out = Philox4x32(
      {position, index, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return UniformFromBits(static_cast<uint64_t>(out[0]) << 32 | out[1]);
}

}  // namespace tandem::rollout
