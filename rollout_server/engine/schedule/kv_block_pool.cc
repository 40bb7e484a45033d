#include "rollout_server/engine/schedule/kv_block_pool.h"

#include <xxhash.h>

#include <cstring>

#include "common/base/check.h"

namespace tandem::rollout {

BlockName ChainStart(uint64_t generation, uint64_t adapter) { return {{generation, adapter}}; }

BlockName NextName(const BlockName& before, std::span<const int32_t> ids) {
  TANDEM_CHECK(static_cast<int64_t>(ids.size()) == kKvBlockTokens);
  std::array<char, sizeof(BlockName) + kKvBlockTokens * sizeof(int32_t)> bytes;
  std::memcpy(bytes.data(), before.words.data(), sizeof(BlockName));
  std::memcpy(bytes.data() + sizeof(BlockName), ids.data(), ids.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {{hash.low64, hash.high64}};
}

KvBlockPool::KvBlockPool(int64_t num_blocks) : blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (int64_t i = num_blocks - 1; i >= 0; --i) free_.push_back(static_cast<BlockId>(i));
}

std::optional<BlockId> KvBlockPool::Allocate() {
  BlockId block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (!findable_.empty()) {
    block = findable_.front();
    findable_.pop_front();
    names_.erase(*blocks_[block].name);
    blocks_[block].name.reset();
    ++num_evictions_;
  } else {
    return std::nullopt;
  }
  blocks_[block].holders = 1;
  return block;
}

void KvBlockPool::Share(BlockId block) {
  TANDEM_CHECK(blocks_[block].holders > 0);
  ++blocks_[block].holders;
}

void KvBlockPool::Release(BlockId block) {
  Block& one = blocks_[block];
  TANDEM_CHECK(one.holders > 0);
  if (--one.holders > 0) return;
  if (one.name) {
    one.place = findable_.insert(findable_.end(), block);
  } else {
    free_.push_back(block);
  }
}

void KvBlockPool::Publish(BlockId block, const BlockName& name, uint64_t generation) {
  Block& one = blocks_[block];
  TANDEM_CHECK(one.holders > 0 && !one.name);
  if (!names_.try_emplace(name, block).second) return;
  one.name = name;
  one.generation = generation;
}

std::optional<BlockId> KvBlockPool::Find(const BlockName& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  Block& one = blocks_[found->second];
  if (one.holders++ == 0) findable_.erase(one.place);
  return found->second;
}

void KvBlockPool::ForgetNames() {
  names_.clear();
  for (Block& block : blocks_) block.name.reset();
  free_.insert(free_.end(), findable_.rbegin(), findable_.rend());
  findable_.clear();
}

}  // namespace tandem::rollout
