#include "rollout_server/engine/cuda/step/step_inputs.h"

#include <algorithm>
#include <map>
#include <set>

namespace tandem::rollout::cuda {
namespace {

constexpr int64_t kBlock = KvBlockPool::kBlockTokens;

int64_t SlotOf(const TokenInput& input, int64_t position) {
  return (*input.blocks)[static_cast<size_t>(position / kBlock)] * kBlock + position % kBlock;
}

// Tokens [first, first + count) of the inputs are neighbours of one sequence.
void AddRun(std::span<const TokenInput> inputs, int64_t first, int64_t count, bool flash,
            int64_t most_gathered, std::vector<RowRange>& ranges) {
  const TokenInput& last = inputs[static_cast<size_t>(first + count - 1)];
  const int64_t context = last.position + 1;
  const auto full = [&](const RowRange& range) {
    return flash && static_cast<int64_t>(range.slots.size()) + context > most_gathered;
  };
  if (ranges.empty() || ranges.back().flash != flash || full(ranges.back())) {
    ranges.push_back({});
    ranges.back().first = first;
    ranges.back().flash = flash;
  }
  RowRange& range = ranges.back();
  range.count += count;
  range.longest_key = std::max(range.longest_key, context);
  if (!flash) return;
  for (int64_t p = 0; p < context; ++p) range.slots.push_back(SlotOf(last, p));
  range.query_ends.push_back(static_cast<int32_t>(range.count));
  range.key_ends.push_back(static_cast<int32_t>(range.slots.size()));
  range.longest_query = std::max(range.longest_query, count);
}

}  // namespace

std::vector<size_t> CopyRounds(std::span<const BlockCopy> copies) {
  std::vector<size_t> ends;
  std::set<BlockId> from, to;
  for (size_t i = 0; i < copies.size(); ++i) {
    const BlockCopy& copy = copies[i];
    if (to.contains(copy.from) || to.contains(copy.to) || from.contains(copy.to)) {
      ends.push_back(i);
      from.clear();
      to.clear();
    }
    from.insert(copy.from);
    to.insert(copy.to);
  }
  if (!copies.empty()) ends.push_back(copies.size());
  return ends;
}

StepInputs LayOut(std::span<const TokenInput> inputs, int64_t flash_tokens, int64_t most_gathered) {
  StepInputs step;
  std::map<const std::vector<BlockId>*, int32_t> sequences;
  std::vector<const std::vector<BlockId>*> tables;
  for (const TokenInput& input : inputs) {
    const auto [at, is_new] =
        sequences.try_emplace(input.blocks, static_cast<int32_t>(tables.size()));
    if (is_new) {
      tables.push_back(input.blocks);
      step.max_blocks = std::max(step.max_blocks, static_cast<int64_t>(input.blocks->size()));
    }
    step.ids.push_back(input.token_id);
    step.positions.push_back(input.position);
    step.sequences.push_back(at->second);
    step.contexts.push_back(input.position + 1);
    step.slots.push_back(SlotOf(input, input.position));
    step.attended += input.position + 1;
  }
  step.block_tables.resize(tables.size() * static_cast<size_t>(step.max_blocks));
  for (size_t t = 0; t < tables.size(); ++t) {
    std::copy(tables[t]->begin(), tables[t]->end(),
              step.block_tables.begin() + static_cast<int64_t>(t) * step.max_blocks);
  }
  const auto size = static_cast<int64_t>(inputs.size());
  for (int64_t first = 0, end = 0; first < size; first = end) {
    for (end = first + 1; end < size; ++end) {
      const TokenInput &before = inputs[static_cast<size_t>(end - 1)],
                       &next = inputs[static_cast<size_t>(end)];
      if (next.blocks != before.blocks || next.position != before.position + 1) break;
    }
    step.kv_read += inputs[static_cast<size_t>(end - 1)].position + 1;
    AddRun(inputs, first, end - first, flash_tokens > 0 && end - first >= flash_tokens,
           most_gathered, step.ranges);
  }
  return step;
}

}  // namespace tandem::rollout::cuda
