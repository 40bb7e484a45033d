#include "trainer/supervised/packed_examples.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

struct BeforeInOrder {
  bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
    return std::ranges::lexicographical_compare(a, b);
  }
};

// Examples of one row, as groups of completions that share a prompt.
struct Row {
  std::vector<GroupTokens> groups;
  std::map<std::span<const int32_t>, size_t, BeforeInOrder> group_of;  // by prompt
  std::vector<std::pair<size_t, size_t>> places;  // [example] its group, and its first completion
  std::vector<size_t> counts;                     // [example] its completions
  int64_t num_tokens = 0;

  // The tokens that an example adds.
  int64_t Added(const GroupTokens& tokens) const {
    size_t count = group_of.contains(tokens.prompt) ? 0 : tokens.prompt.size();
    for (const auto& completion : tokens.completions) count += completion.size();
    return static_cast<int64_t>(count);
  }

  void Add(GroupTokens tokens) {
    num_tokens += Added(tokens);
    counts.push_back(tokens.completions.size());
    const auto [found, is_first] = group_of.try_emplace(tokens.prompt, groups.size());
    if (is_first) {
      places.emplace_back(groups.size(), 0);
      groups.push_back(std::move(tokens));
      return;
    }
    auto& completions = groups[found->second].completions;
    places.emplace_back(found->second, completions.size());
    std::ranges::move(tokens.completions, std::back_inserter(completions));
  }
};

// Where the examples of `from` lie in the row that was packed from its groups.
std::vector<PackedExample> Places(const PackedRow& row, const Row& from,
                                  std::span<const int64_t> examples) {
  std::vector<const Segment*> prompts;  // of the groups; their completions follow them
  for (const Segment& segment : row.segments) {
    if (segment.prefix_begin == segment.prefix_end) prompts.push_back(&segment);
  }
  std::vector<PackedExample> places;
  for (size_t i = 0; i < from.places.size(); ++i) {
    const auto [group, first] = from.places[i];
    const Segment* const prompt = prompts[group];
    PackedExample& place = places.emplace_back(
        PackedExample{.example = examples[i], .prompt = {prompt->begin, prompt->end}});
    for (size_t c = 0; c < from.counts[i]; ++c) {
      const Segment& completion = prompt[1 + first + c];
      place.completions.push_back({completion.begin, completion.end});
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
  Row together;  // the batch as one row, for its size
  for (const int64_t example : examples) {
    TANDEM_RETURN_IF_ERROR(CheckExample(example, all.emplace_back(tokens_of(example))));
    together.Add(all.back());
  }
  const int64_t share = (together.num_tokens + packing.num_ranks - 1) / packing.num_ranks;
  const int64_t limit = std::min(packing.microbatch_tokens, std::max<int64_t>(share, 1));
  PackedExamples packed;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    Row row;
    for (end = begin; end < all.size(); ++end) {
      if (end > begin && row.num_tokens + row.Added(all[end]) > limit) break;
      row.Add(std::move(all[end]));
    }
    Microbatch& micro = packed.batch.microbatches.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(micro.row, PackRow(row.groups));
    packed.of_row.push_back(Places(micro.row, row, examples.subspan(begin, end - begin)));
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
