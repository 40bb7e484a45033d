// XXH3 digests of tensors and token ids. The former prove the delivery of weights; the latter prove
// that ids were never re-tokenised on the way.
#ifndef TANDEM_COMMON_WEIGHTS_DIGEST_H_
#define TANDEM_COMMON_WEIGHTS_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/weights/host_tensor.h"

namespace tandem {

// XXH3-128 of the bytes as 32 lower-case hex digits, in canonical (big-endian) form.
std::string Digest128(std::span<const std::byte> bytes);

// Tensor name -> digest.
using DigestMap = std::map<std::string, std::string>;
DigestMap DigestTensors(std::span<const HostTensor> tensors);

// One digest over a set of tensors: Digest128 of "name:digest\n" lines in name order.
std::string CombinedDigest(const DigestMap& digests);

// XXH3-64 of the ids as little-endian int32. Never 0, because 0 on the wire means "not checked".
uint64_t HashTokenIds(std::span<const int32_t> ids);

}  // namespace tandem

#endif  // TANDEM_COMMON_WEIGHTS_DIGEST_H_
