#include "trainer/supervised/packed_examples.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

int64_t NumTokens(const GroupTokens& tokens) {
  size_t count = tokens.prompt.size();
  for (const auto& completion : tokens.completions) count += completion.size();
  return static_cast<int64_t>(count);
}

// Where the examples lie in a row that was packed from them in this order.
std::vector<PackedExample> Places(const PackedRow& row, std::span<const int64_t> examples) {
  std::vector<PackedExample> places;
  for (const Segment& segment : row.segments) {
    const bool is_prompt = segment.prefix_begin == segment.prefix_end;
    if (is_prompt) {
      places.push_back(
          {.example = examples[places.size()], .prompt = {segment.begin, segment.end}});
    } else {
      places.back().completions.push_back({segment.begin, segment.end});
    }
  }
  return places;
}

absl::Status CheckExample(int64_t example, const GroupTokens& tokens) {
  if (tokens.prompt.empty()) {
    return InvalidArgument("example ", example, ": the prompt has no tokens");
  }
  for (const auto& completion : tokens.completions) {
    if (completion.empty()) {
      return InvalidArgument("example ", example, ": a completion has no tokens");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PackedExamples> PackExamples(std::span<const int64_t> examples,
                                            const std::function<GroupTokens(int64_t)>& tokens_of,
                                            const ExamplePacking& packing) {
  std::vector<GroupTokens> all;
  int64_t total = 0;
  for (const int64_t example : examples) {
    TANDEM_RETURN_IF_ERROR(CheckExample(example, all.emplace_back(tokens_of(example))));
    total += NumTokens(all.back());
  }
  const int64_t share = (total + packing.num_ranks - 1) / packing.num_ranks;
  const int64_t limit = std::min(packing.microbatch_tokens, std::max<int64_t>(share, 1));
  PackedExamples packed;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    int64_t tokens = NumTokens(all[begin]);
    for (end = begin + 1; end < all.size(); ++end) {
      tokens += NumTokens(all[end]);
      if (tokens > limit) break;
    }
    Microbatch& micro = packed.batch.microbatches.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(micro.row, PackRow(std::span(all).subspan(begin, end - begin)));
    packed.of_row.push_back(Places(micro.row, examples.subspan(begin, end - begin)));
    if (!packing.prompt_is_target) continue;
    for (const PackedExample& example : packed.of_row.back()) {
      for (int64_t t = example.prompt.begin + 1; t < example.prompt.end; ++t) {
        micro.row.is_target[static_cast<size_t>(t)] = true;
      }
    }
  }
  packed.batch.minibatches = {{0, static_cast<int64_t>(packed.batch.microbatches.size())}};
  return packed;
}

}  // namespace tandem::trainer
