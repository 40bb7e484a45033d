#include "rollout_server/engine/kv_block_pool.h"

#include "common/base/check.h"

namespace tandem::rollout {

KvBlockPool::KvBlockPool(int64_t num_blocks) : holders_(num_blocks, 0) {
  free_.reserve(num_blocks);
  for (int64_t i = num_blocks - 1; i >= 0; --i) free_.push_back(static_cast<BlockId>(i));
}

BlockId KvBlockPool::Allocate() {
  TANDEM_CHECK(!free_.empty());
  const BlockId block = free_.back();
  free_.pop_back();
  holders_[block] = 1;
  return block;
}

void KvBlockPool::Share(BlockId block) {
  TANDEM_CHECK(holders_[block] > 0);
  ++holders_[block];
}

void KvBlockPool::Release(BlockId block) {
  TANDEM_CHECK(holders_[block] > 0);
  if (--holders_[block] == 0) free_.push_back(block);
}

}  // namespace tandem::rollout
