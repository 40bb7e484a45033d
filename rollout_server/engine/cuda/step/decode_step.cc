#include "rollout_server/engine/cuda/step/decode_step.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <set>
#include <vector>

namespace tandem::rollout::cuda {
namespace {

constexpr int64_t kBlock = KvBlockPool::kBlockTokens;

int64_t Up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <typename T>
void Put(const std::vector<T>& values, size_t at, std::span<std::byte> to) {
  std::memcpy(to.data() + at, values.data(), values.size() * sizeof(T));
}

}  // namespace

int64_t PaddedRows(int64_t rows) {
  if (rows <= 8) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  if (rows <= 64) return Up(rows, 8);
  return Up(rows, rows <= 256 ? 16 : 64);
}

int64_t PaddedChunks(int64_t longest_context) {
  const int64_t chunks = Up(std::max<int64_t>(longest_context, 1), tandem::cuda::kAttentionChunk) /
                         tandem::cuda::kAttentionChunk;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(chunks)));
}

bool RecordsSupport(const SamplingParams& params) {
  const bool filtered = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  return params.return_support && filtered && params.temperature > 0;
}

std::optional<GraphKey> GraphOf(std::span<const TokenInput> inputs,
                                std::span<const int64_t> logits_rows,
                                std::span<const TokenDraw> draws, uint64_t weights) {
  const auto rows = static_cast<int64_t>(inputs.size());
  if (rows == 0 || rows > kMaxGraphRows) return std::nullopt;
  if (logits_rows.size() != inputs.size() || draws.size() != inputs.size()) return std::nullopt;
  int64_t longest = 0, forbidden = 0;
  std::set<const StopIds*> lists;
  for (int64_t i = 0; i < rows; ++i) {
    const TokenDraw& draw = draws[static_cast<size_t>(i)];
    if (logits_rows[static_cast<size_t>(i)] != i || draw.logits_row != i) return std::nullopt;
    longest = std::max<int64_t>(longest, inputs[static_cast<size_t>(i)].position + 1);
    if (draw.forbidden != nullptr && lists.insert(draw.forbidden).second) {
      forbidden += std::ssize(draw.forbidden->words());
    }
  }
  const GraphKey key = {PaddedRows(rows), PaddedChunks(longest), weights};
  if (key.chunks > kMaxGraphChunks || forbidden > key.rows * kForbiddenEach) return std::nullopt;
  return key;
}

DecodeLayout LayoutOf(const GraphKey& key) {
  DecodeLayout layout;
  layout.max_blocks = key.chunks * (tandem::cuda::kAttentionChunk / kBlock);
  const auto rows = static_cast<size_t>(key.rows);
  const auto take = [&](size_t each) {
    const size_t begin = layout.bytes;
    layout.bytes += (rows * each + 15) / 16 * 16;
    return begin;
  };
  layout.ids = take(sizeof(int32_t));
  layout.positions = take(sizeof(int32_t));
  layout.sequences = take(sizeof(int32_t));
  layout.contexts = take(sizeof(int32_t));
  layout.slots = take(sizeof(int64_t));
  layout.logits_rows = take(sizeof(int64_t));
  layout.block_tables = take(static_cast<size_t>(layout.max_blocks) * sizeof(int32_t));
  layout.draws = take(sizeof(Draw));
  layout.forbidden = take(static_cast<size_t>(kForbiddenEach) * sizeof(int32_t));
  return layout;
}

void Fill(const GraphKey& key, std::span<const TokenInput> inputs, std::span<const TokenDraw> draws,
          std::span<std::byte> to) {
  const DecodeLayout layout = LayoutOf(key);
  const auto rows = static_cast<size_t>(key.rows), used = static_cast<size_t>(layout.max_blocks);
  std::vector<int32_t> ids(rows), positions(rows), sequences(rows), contexts(rows);
  std::vector<int64_t> slots(rows, -1), logits_rows(rows);
  std::vector<int32_t> block_tables(rows * used);
  ForbiddenWords forbidden;
  std::vector<Draw> drawn(rows);
  for (size_t i = 0; i < rows; ++i) {
    sequences[i] = static_cast<int32_t>(i);
    logits_rows[i] = static_cast<int64_t>(i);
    drawn[i].row = -1;
    if (i >= inputs.size()) continue;
    const TokenInput& input = inputs[i];
    ids[i] = input.token_id;
    positions[i] = input.position;
    contexts[i] = input.position + 1;
    const std::vector<BlockId>& blocks = *input.blocks;
    slots[i] =
        blocks[static_cast<size_t>(input.position / kBlock)] * kBlock + input.position % kBlock;
    const auto needed = static_cast<int64_t>(input.position / kBlock + 1);
    std::copy(blocks.begin(), blocks.begin() + needed,
              block_tables.begin() + static_cast<int64_t>(i * used));
    const auto row = static_cast<int64_t>(i);
    drawn[i] = AsDraw(draws[i], row % kLogitsRows, row, forbidden);
  }
  Put(ids, layout.ids, to);
  Put(positions, layout.positions, to);
  Put(sequences, layout.sequences, to);
  Put(contexts, layout.contexts, to);
  Put(slots, layout.slots, to);
  Put(logits_rows, layout.logits_rows, to);
  Put(block_tables, layout.block_tables, to);
  Put(drawn, layout.draws, to);
  Put(forbidden.words(), layout.forbidden, to);
}

int32_t ForbiddenWords::BeginOf(const StopIds& ids) {
  const auto [begin, is_new] = begins_.try_emplace(&ids, static_cast<int32_t>(words_.size()));
  if (is_new) words_.insert(words_.end(), ids.words().begin(), ids.words().end());
  return begin->second;
}

Draw AsDraw(const TokenDraw& draw, int64_t row, int64_t kept_row, ForbiddenWords& forbidden) {
  int32_t first_forbidden = 0, num_forbidden = 0;
  if (draw.forbidden != nullptr && !draw.forbidden->empty()) {
    first_forbidden = forbidden.BeginOf(*draw.forbidden);
    num_forbidden = draw.forbidden->is_bits()
                        ? kForbiddenBits
                        : static_cast<int32_t>(draw.forbidden->words().size());
  }
  return {.seed = draw.params->seed,
          .index = draw.index,
          .position = draw.position,
          .row = static_cast<int32_t>(row),
          .temperature = draw.params->temperature,
          .top_k = draw.params->top_k,
          .top_p = draw.params->top_p,
          .min_p = draw.params->min_p,
          .first_forbidden = first_forbidden,
          .num_forbidden = num_forbidden,
          .kept_row = RecordsSupport(*draw.params) ? static_cast<int32_t>(kept_row) : -1,
          .num_top = draw.params->top_logprobs};
}

std::vector<int32_t> KeptIds(std::span<const uint32_t> words) {
  std::vector<int32_t> ids;
  for (size_t w = 0; w < words.size(); ++w) {
    for (uint32_t left = words[w]; left != 0; left &= left - 1) {
      ids.push_back(static_cast<int32_t>(w * 32) + std::countr_zero(left));
    }
  }
  return ids;
}

}  // namespace tandem::rollout::cuda
