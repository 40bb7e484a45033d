#include "rollout_server/engine/schedule/prefix_chain.h"

#include <xxhash.h>

#include <cstring>

#include "common/base/check.h"

namespace tandem::rollout {

BlockName ChainStart(uint64_t generation) { return {{generation, 0}}; }

BlockName NextName(const BlockName& before, std::span<const int32_t> ids) {
  TANDEM_CHECK(static_cast<int64_t>(ids.size()) == kKvBlockTokens);
  std::array<char, sizeof(BlockName) + kKvBlockTokens * sizeof(int32_t)> bytes;
  std::memcpy(bytes.data(), before.words.data(), sizeof(BlockName));
  std::memcpy(bytes.data() + sizeof(BlockName), ids.data(), ids.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {{hash.low64, hash.high64}};
}

}  // namespace tandem::rollout
