// Hashes and random numbers that are the same on every platform and in every release.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace tandem {

// A 64-bit hash of numbers. The order of prompts and the seeds of groups come from it, so that a
// run can be repeated from its seed. Chains the finaliser of SplitMix64 (Steele, Lea and Flood
// 2014).
inline uint64_t StableHash(std::initializer_list<uint64_t> numbers) {
  uint64_t state = 0;
  for (const uint64_t number : numbers) {
    state += number + 0x9e3779b97f4a7c15u;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  }
  return state;
}

// Standard normal numbers: the Box-Muller transform of a generator whose output the C++ standard
// fixes, unlike that of std::normal_distribution. Thread-compatible.
class RandomNormal {
 public:
  explicit RandomNormal(uint64_t seed) : generator_(seed) {}
  float Next();

 private:
  std::mt19937_64 generator_;
  bool has_spare_ = false;
  float spare_ = 0;
};

}  // namespace tandem
