// WordSums: a digest of bytes that a device makes as fast as it reads them, and the host with the
// same result. It proves a push whose bytes never were in host memory at the receiver; every other
// digest of weights is XXH3-128 (digest.h), which has to be made from the first byte to the last.
//
// The bytes are cut into words of 64 bits (little-endian, the last one filled up with zeros), each
// word is mixed with its place, and the results are added modulo 2^64, in two sums by two mixes. A
// sum of integers does not depend on its order: threads add theirs as they come, and any number of
// them gives the same bits.
//
//   found for certain      any change within one word: for a fixed place both mixes are bijections
//   found but for 2^-128   anything else that happens by accident: words that are swapped, shifted,
//                          lost or stale. XXH3-128 misses as rarely
//   not found              bytes that somebody made to have these sums. Neither digest keeps
//                          strangers out; who may push is checked elsewhere (docs/security.md)
//
// Pure; constexpr, so that kernels may call the mixes (nvcc's --expt-relaxed-constexpr).
#ifndef TANDEM_COMMON_WEIGHTS_WORD_SUMS_H_
#define TANDEM_COMMON_WEIGHTS_WORD_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tandem {

struct WordSums {
  uint64_t first = 0, second = 0;

  friend bool operator==(const WordSums&, const WordSums&) = default;
};

// splitmix64's mixing, a bijection.
constexpr uint64_t MixWord(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// What word `index` of the bytes adds.
constexpr WordSums TermsOf(uint64_t word, uint64_t index) {
  return {MixWord(word + (index + 1) * 0x9e3779b97f4a7c15ull),
          MixWord(~word + (index + 1) * 0xd1342543de82ef95ull)};
}

WordSums SumWords(std::span<const std::byte> bytes);

// 32 lower-case hex digits: the sums, after what the number of bytes adds.
std::string WordSumsText(WordSums sums, int64_t num_bytes);

// WordSumsText of SumWords.
std::string WordSumsDigest(std::span<const std::byte> bytes);

}  // namespace tandem

#endif  // TANDEM_COMMON_WEIGHTS_WORD_SUMS_H_
