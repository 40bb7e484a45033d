#include "trainer/experience/row_plan.h"

#include <utility>

namespace tandem::trainer {

std::vector<GroupPart> SplitGroup(const GroupLengths& group, int64_t position, int64_t budget,
                                  bool whole) {
  std::vector<GroupPart> parts;
  for (size_t i = 0; i < group.completions.size(); ++i) {
    const int64_t length = group.completions[i];
    if (length == 0) continue;
    if (parts.empty() || (!whole && parts.back().num_tokens + length > budget)) {
      parts.push_back({.group = position, .num_tokens = group.prompt});
    }
    parts.back().completions.push_back(static_cast<int64_t>(i));
    parts.back().num_tokens += length;
  }
  return parts;
}

std::vector<std::vector<GroupPart>> FillRows(std::span<const GroupLengths> groups, int64_t begin,
                                             int64_t end, int64_t budget, bool whole_groups) {
  std::vector<std::vector<GroupPart>> rows;
  int64_t row_tokens = 0;
  for (int64_t g = begin; g < end; ++g) {
    for (GroupPart& part : SplitGroup(groups[static_cast<size_t>(g)], g, budget, whole_groups)) {
      if (rows.empty() || row_tokens + part.num_tokens > budget) {
        rows.emplace_back();
        row_tokens = 0;
      }
      row_tokens += part.num_tokens;
      rows.back().push_back(std::move(part));
    }
  }
  return rows;
}

}  // namespace tandem::trainer
