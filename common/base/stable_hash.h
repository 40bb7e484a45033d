// StableHash: a 64-bit hash of numbers that is the same on every machine and in every release. The
// order of prompts and the seeds of groups come from it, so that a run can be repeated from its
// seed.
#ifndef TANDEM_COMMON_BASE_STABLE_HASH_H_
#define TANDEM_COMMON_BASE_STABLE_HASH_H_

#include <cstdint>
#include <initializer_list>

namespace tandem::trainer {

// Chains the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
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

}  // namespace tandem::trainer

#endif  // TANDEM_COMMON_BASE_STABLE_HASH_H_
