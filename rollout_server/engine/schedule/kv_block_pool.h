// KvBlockPool: reference counts of the KV cache's blocks, and an index of full blocks by name
// (automatic prefix caching, as in vLLM). Pure bookkeeping: no memory, clock or device.
// Thread-compatible.
//
// A block has kBlockTokens consecutive tokens of one sequence, and may have several holders. A full
// block can be published under its name (BlockName). When its last holder releases it, it stays
// findable until its memory is needed; the least recently used block is evicted first.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/model/forward_kernels.h"

namespace tandem::rollout {

using BlockId = int32_t;

// The name of a full block of KV covers every token up to its end, and the weights and the adapter
// that computed them, so equal names mean equal KV: a block with another prefix, or computed under replaced
// weights, has another name. XXH3-128 of (name of the block before, ids of this block): no two
// collide by chance.
struct BlockName {
  std::array<uint64_t, 2> words = {};
  friend auto operator<=>(const BlockName&, const BlockName&) = default;
};

// The name before the first block. It changes with every install of weights, and with the adapter
// beside them (0: none).
BlockName ChainStart(uint64_t generation, uint64_t adapter);

// `ids` [kKvBlockTokens].
BlockName NextName(const BlockName& before, std::span<const int32_t> ids);

class KvBlockPool {
 public:
  static constexpr int64_t kBlockTokens = kKvBlockTokens;

  explicit KvBlockPool(int64_t num_blocks);

  static int64_t BlocksFor(int64_t num_tokens) {
    return (num_tokens + kBlockTokens - 1) / kBlockTokens;
  }

  // A block with one holder and no name: a free one, else the least recently used findable one.
  // Nothing when every block is held.
  std::optional<BlockId> Allocate();

  // Adds a holder to a held block.
  void Share(BlockId block);

  // Removes a holder. The last one frees the block, or leaves it findable when it has a name.
  void Release(BlockId block);

  // Names a held, full block, unless another block has that name already. `generation`: of the
  // weights that computed it.
  void Publish(BlockId block, const BlockName& name, uint64_t generation);

  // The block of that name, with a holder added.
  std::optional<BlockId> Find(const BlockName& name);

  // Forgets every name: the weights changed.
  void ForgetNames();

  int32_t holders(BlockId block) const { return blocks_[block].holders; }
  // The generation that the block was published with. It is recorded apart from the name, so that a
  // name that finds KV of other weights can be noticed.
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
