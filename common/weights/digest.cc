#include "common/weights/digest.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "xxhash.h"

namespace tandem {

static_assert(std::endian::native == std::endian::little,
              "token ids and tensors are hashed as they lie in memory");

namespace {

std::string Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)));
}

}  // namespace

std::string Digest128(std::span<const std::byte> bytes) {
  return Canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

absl::StatusOr<std::string> DigestFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open failed"));
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> block(1 << 20);
  while (const size_t count = std::fread(block.data(), 1, block.size(), file.get())) {
    XXH3_128bits_update(state.get(), block.data(), count);
  }
  if (std::ferror(file.get())) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": read failed"));
  }
  return Canonical(XXH3_128bits_digest(state.get()));
}

DigestMap DigestTensors(std::span<const HostTensor> tensors) {
  DigestMap digests;
  for (const HostTensor& tensor : tensors) digests[tensor.spec.name] = Digest128(tensor.bytes);
  return digests;
}

std::string CombinedDigest(const DigestMap& digests) {
  std::string lines;
  for (const auto& [name, digest] : digests) absl::StrAppend(&lines, name, ":", digest, "\n");
  return Digest128(std::as_bytes(std::span(lines)));
}

uint64_t HashTokenIds(std::span<const int32_t> ids) {
  const uint64_t hash = XXH3_64bits(ids.data(), ids.size_bytes());
  return hash == 0 ? 1 : hash;
}

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
