// KvBlockPool: who holds which block of the KV cache. Pure bookkeeping: no memory, clock or device.
// A block holds kBlockTokens consecutive tokens of one sequence; a group's full prompt blocks are held
// by all its members. Thread-compatible.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_KV_BLOCK_POOL_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_KV_BLOCK_POOL_H_

#include <cstdint>
#include <vector>

#include "common/model/forward_kernels.h"

namespace tandem::rollout {

using BlockId = int32_t;

class KvBlockPool {
 public:
  static constexpr int64_t kBlockTokens = kKvBlockTokens;

  explicit KvBlockPool(int64_t num_blocks);

  static int64_t BlocksFor(int64_t num_tokens) {
    return (num_tokens + kBlockTokens - 1) / kBlockTokens;
  }

  // A free block with one holder. Allocating from an empty pool breaks an invariant: admission
  // reserves the worst case.
  BlockId Allocate();

  // One more holder of a held block.
  void Share(BlockId block);

  // One holder less; the last one frees the block.
  void Release(BlockId block);

  int32_t holders(BlockId block) const { return holders_[block]; }
  int64_t num_blocks() const { return static_cast<int64_t>(holders_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

 private:
  std::vector<int32_t> holders_;  // [num_blocks]
  std::vector<BlockId> free_;     // a stack
};

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_KV_BLOCK_POOL_H_
