// XXH3 digests of tensors and token ids. The former prove the delivery of weights; the latter prove
// that ids were never re-tokenised on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// WordSums: a digest that a device computes as fast as it reads memory, and that the host can
// compute too, with the same result. It proves a push whose bytes were never in the receiver's host
// memory. All other digests of weights are XXH3-128 (digest.h), which must be computed
// sequentially.
//
// The bytes are cut into words of 64 bits (little-endian, the last one padded with zeros). Each
// word is mixed with its index, by two mixing functions, and the results are added up in two sums
// modulo 2^64. Sums of integers do not depend on their order, so any number of threads gives the
// same bits.
//
//   always detected           a change within one word, since for a fixed index both mixes are
//                             bijections
//   missed, chance 2^-128     other accidents: words that are swapped, shifted, lost or stale.
//                             XXH3-128 misses as rarely
//   not detected              bytes that were crafted to have these sums. Neither digest protects
//                             against attackers; docs/security.md says who may push
//
// Pure; constexpr, so that kernels can call the mixes (nvcc's --expt-relaxed-constexpr).
struct WordSums {
  uint64_t first = 0, second = 0;

  friend bool operator==(const WordSums&, const WordSums&) = default;
};

// The mixing function of SplitMix64, which is a bijection.
constexpr uint64_t MixWord(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The contribution of word `index` to the sums.
constexpr WordSums TermsOf(uint64_t word, uint64_t index) {
  return {MixWord(word + (index + 1) * 0x9e3779b97f4a7c15ull),
          MixWord(~word + (index + 1) * 0xd1342543de82ef95ull)};
}

WordSums SumWords(std::span<const std::byte> bytes);

// The sums and a contribution of the number of bytes, as 32 lower-case hex digits.
std::string WordSumsText(WordSums sums, int64_t num_bytes);

// WordSumsText of SumWords of the bytes.
std::string WordSumsDigest(std::span<const std::byte> bytes);

// XXH3-128 of the bytes as 32 lower-case hex digits, in canonical (big-endian) form.
std::string Digest128(std::span<const std::byte> bytes);

// Digest128 of a file's bytes, which are read a MiB at a time: a mapped file would count to the memory
// of a process whose checkpoints are larger than what it trains with.
// Errors: that of the system where the file cannot be opened or read.
absl::StatusOr<std::string> DigestFile(const std::string& path);

// Tensor name -> digest.
using DigestMap = std::map<std::string, std::string>;
DigestMap DigestTensors(std::span<const HostTensor> tensors);

// One digest over a set of tensors: Digest128 of "name:digest\n" lines in name order.
std::string CombinedDigest(const DigestMap& digests);

// XXH3-64 of the ids as little-endian int32. Never 0, because 0 on the wire means "not checked".
uint64_t HashTokenIds(std::span<const int32_t> ids);

}  // namespace tandem
