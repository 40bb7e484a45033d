// PrefixChain: names for full blocks of KV. The name of block i covers every token up to its end
// and the weights that computed them, so equal names mean equal KV: a block under another prefix,
// or of weights that were replaced, has another name. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/model/forward_kernels.h"

namespace tandem::rollout {

// XXH3-128 of (name of the block before, ids of this block): collisions are out of reach of chance.
struct BlockName {
  std::array<uint64_t, 2> words = {};
  friend auto operator<=>(const BlockName&, const BlockName&) = default;
};

// The name in front of the first block. Changes with every install of weights.
BlockName ChainStart(uint64_t generation);

// `ids` [kKvBlockTokens].
BlockName NextName(const BlockName& before, std::span<const int32_t> ids);

}  // namespace tandem::rollout
