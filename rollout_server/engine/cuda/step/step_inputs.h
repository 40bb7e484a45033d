// StepInputs: the arrays that the kernels of one step read besides weights and cache, made on the
// host. Pure; free of LibTorch and CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_server/engine/forward/token_runner.h"

namespace tandem::rollout::cuda {

// Bounds on the memory of attention in a step, whatever its contexts: floats of paged attention's
// scratch memory, and tokens whose keys and values are gathered for flash attention at once. A
// single longer context may exceed them.
inline constexpr int64_t kAttentionScratchFloats = int64_t{1} << 26;
inline constexpr int64_t kGatheredTokens = int64_t{1} << 16;

// Neighbouring rows that use the same attention kernel.
struct RowRange {
  int64_t first = 0, count = 0;
  bool flash = false;
  int64_t longest_key = 0;  // the longest context
  // With flash: runs of neighbouring tokens of a sequence, and the cache slots of their contexts.
  std::vector<int32_t> query_ends = {0};  // [runs + 1] cumulative
  std::vector<int32_t> key_ends = {0};    // [runs + 1]
  std::vector<int64_t> slots;             // [key_ends.back()]
  int64_t longest_query = 0;
};

struct StepInputs {
  std::vector<int32_t> ids, positions, sequences, contexts;  // [N]
  std::vector<int64_t> slots;                                // [N]
  std::vector<int32_t> block_tables;  // [S, max_blocks], 0 after a sequence's last block
  int64_t max_blocks = 0;
  std::vector<RowRange> ranges;
  double attended = 0;  // sum of contexts
  double kv_read = 0;   // KV entries read; neighbouring tokens of a sequence read theirs once
};

// Splits copies, which must be made in order, into rounds that may each be made at once: no block
// of a round is both copied from and copied to, or copied to twice. Returns where each round ends.
std::vector<size_t> CopyRounds(std::span<const BlockCopy> copies);

// Runs of at least `flash_tokens` tokens use flash attention; 0: none do. The contexts of a range
// of several runs have at most `most_gathered` tokens together.
StepInputs LayOut(std::span<const TokenInput> inputs, int64_t flash_tokens,
                  int64_t most_gathered = kGatheredTokens);

}  // namespace tandem::rollout::cuda
