#include "common/weights/digest.h"

#include <bit>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "xxhash.h"

namespace tandem {

static_assert(std::endian::native == std::endian::little,
              "token ids and tensors are hashed as they lie in memory");

std::string Digest128(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)));
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

}  // namespace tandem
