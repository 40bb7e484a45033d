// KvBlockPool: who holds which block of the KV cache, and which blocks nobody holds still have
// contents worth finding again. Pure bookkeeping: no memory, clock or device. Thread-compatible.
//
// A block holds kBlockTokens consecutive tokens of one sequence, and may be held by several. A full
// block can be published under its name (prefix_chain.h); when its last holder lets go it stays
// findable until its place is needed, the least recently used one going first.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "common/model/forward_kernels.h"
#include "rollout_server/engine/schedule/prefix_chain.h"

namespace tandem::rollout {

using BlockId = int32_t;

class KvBlockPool {
 public:
  static constexpr int64_t kBlockTokens = kKvBlockTokens;

  explicit KvBlockPool(int64_t num_blocks);

  static int64_t BlocksFor(int64_t num_tokens) {
    return (num_tokens + kBlockTokens - 1) / kBlockTokens;
  }

  // A block with one holder and no name: a free one, else the least recently used that only waits
  // to be found. Nothing when every block is held.
  std::optional<BlockId> Allocate();

  // One more holder of a held block.
  void Share(BlockId block);

  // One holder less. The last one frees the block, or leaves it findable.
  void Release(BlockId block);

  // Names a held, full block, unless another block has that name already. `generation`: of the
  // weights that computed it.
  void Publish(BlockId block, const BlockName& name, uint64_t generation);

  // The block of that name, with one more holder.
  std::optional<BlockId> Find(const BlockName& name);

  // Forgets every name: the weights changed.
  void ForgetNames();

  int32_t holders(BlockId block) const { return blocks_[block].holders; }
  // What the block was published with. A record that owes nothing to the names, so that a name
  // that finds KV of other weights shows.
  uint64_t generation(BlockId block) const { return blocks_[block].generation; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t num_held() const { return num_blocks() - num_available(); }
  int64_t num_available() const {  // to Allocate
    return static_cast<int64_t>(free_.size() + findable_.size());
  }
  int64_t num_findable() const { return static_cast<int64_t>(findable_.size()); }
  uint64_t num_evictions() const { return num_evictions_; }

 private:
  struct Block {
    int32_t holders = 0;
    std::optional<BlockName> name;
    uint64_t generation = 0;             // as published
    std::list<BlockId>::iterator place;  // in findable_, while nobody holds it and it has a name
  };

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;    // a stack: no holder, no name
  std::list<BlockId> findable_;  // no holder, a name; least recently used first
  std::map<BlockName, BlockId> names_;
  uint64_t num_evictions_ = 0;
};

}  // namespace tandem::rollout
