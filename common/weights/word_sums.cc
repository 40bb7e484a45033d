#include "common/weights/word_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

WordSums SumWords(std::span<const std::byte> bytes) {
  WordSums sums;
  for (size_t at = 0, index = 0; at < bytes.size(); at += 8, ++index) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    const WordSums terms = TermsOf(word, index);
    sums.first += terms.first;
    sums.second += terms.second;
  }
  return sums;
}

std::string WordSumsText(WordSums sums, int64_t num_bytes) {
  // No word has index -1, so its terms are used for the length.
  const WordSums length = TermsOf(static_cast<uint64_t>(num_bytes), ~uint64_t{0});
  return absl::StrCat(absl::Hex(sums.first + length.first, absl::kZeroPad16),
                      absl::Hex(sums.second + length.second, absl::kZeroPad16));
}

std::string WordSumsDigest(std::span<const std::byte> bytes) {
  return WordSumsText(SumWords(bytes), static_cast<int64_t>(bytes.size()));
}

}  // namespace tandem
