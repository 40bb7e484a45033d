// RandomNumbers: the random numbers of the toy. Each is a function of (seed, purpose, step, row,
// column) alone (Philox, Salmon et al. 2011), so a run does not depend on what else is sampled or
// on the number of threads.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "rollout_server/engine/sampling/philox.h"

namespace tandem::drift {

enum class Purpose : uint32_t {
  kTarget,
  kInitial,
  kWarmStart,
  kToken,
  kGapPerToken,
  kGapFixed,
  kBootstrap
};

class RandomNumbers {
 public:
  RandomNumbers(uint64_t seed, Purpose purpose)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        purpose_(static_cast<uint32_t>(purpose)) {}

  // Uniform in (0, 1).
  double Uniform(uint32_t step, uint32_t row, uint32_t column) const {
    const rollout::PhiloxCounter out = Block(step, row, column);
    return rollout::UniformFromBits(static_cast<uint64_t>(out[0]) << 32 | out[1]);
  }

  // An integer in [0, n), each with probability 1/n to within n / 2^52.
  int Below(int n, uint32_t step, uint32_t row, uint32_t column) const {
    return static_cast<int>(Uniform(step, row, column) * n);
  }

  // Standard normal values (Box and Muller), four from each block of random bits.
  template <size_t N>
  void Normals(uint32_t step, uint32_t row, uint32_t column, std::array<double, N>& out) const {
    static_assert(N % 4 == 0);
    for (size_t i = 0; i < N; i += 4) {
      const rollout::PhiloxCounter bits =
          Block(step, row, column * static_cast<uint32_t>(N / 4) + static_cast<uint32_t>(i / 4));
      for (size_t pair = 0; pair < 4; pair += 2) {
        const double u = (bits[pair] + 0.5) * 0x1.0p-32, v = (bits[pair + 1] + 0.5) * 0x1.0p-32;
        const double radius = std::sqrt(-2 * std::log(u));
        out[i + pair] = radius * std::cos(2 * std::numbers::pi * v);
        out[i + pair + 1] = radius * std::sin(2 * std::numbers::pi * v);
      }
    }
  }

 private:
  rollout::PhiloxCounter Block(uint32_t step, uint32_t row, uint32_t column) const {
    return rollout::Philox4x32({column, row, step, purpose_}, key_);
  }

  const rollout::PhiloxKey key_;
  const uint32_t purpose_;
};

}  // namespace tandem::drift
