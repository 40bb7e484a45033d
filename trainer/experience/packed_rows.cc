#include "trainer/experience/packed_rows.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// Appends one segment's tokens. `first_source` predicts the segment's first token, each other token
// is predicted by the one before it.
void AppendSegment(std::span<const int32_t> token_ids, int32_t first_position, int64_t first_source,
                   bool is_target, PackedRow& row) {
  for (size_t i = 0; i < token_ids.size(); ++i) {
    row.source.push_back(i == 0 ? first_source : row.num_tokens() - 1);
    row.token_ids.push_back(token_ids[i]);
    row.positions.push_back(first_position + static_cast<int32_t>(i));
    row.is_target.push_back(is_target);
  }
}

absl::Status PlaceSupport(std::span<const GroupTokens> groups, PackedRow& row) {
  size_t completion = 0;
  for (const GroupTokens& group : groups) {
    for (size_t i = 0; i < group.completions.size(); ++i) {
      const Segment& segment = row.segments[row.completion_segments[completion++]];
      if (i >= group.support.size() || group.support[i].empty()) continue;
      if (group.support[i].size() != group.completions[i].size()) {
        return InvalidArgument("support of ", group.support[i].size(),
                               " tokens for a completion of ", group.completions[i].size());
      }
      row.support.resize(row.token_ids.size());
      std::copy(group.support[i].begin(), group.support[i].end(),
                row.support.begin() + segment.begin);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PackedRow> PackRow(std::span<const GroupTokens> groups) {
  PackedRow row;
  for (size_t g = 0; g < groups.size(); ++g) {
    const GroupTokens& group = groups[g];
    if (group.prompt.empty()) {
      return InvalidArgument("group ", g, " of the row: empty prompt");
    }
    const int64_t prompt_begin = row.num_tokens();
    AppendSegment(group.prompt, 0, -1, false, row);
    const int64_t prompt_end = row.num_tokens();
    row.segments.push_back({.begin = prompt_begin, .end = prompt_end});
    for (size_t i = 0; i < group.completions.size(); ++i) {
      if (group.completions[i].empty()) {
        return InvalidArgument("group ", g, " of the row: completion ", i, " has no tokens");
      }
      const int64_t begin = row.num_tokens();
      AppendSegment(group.completions[i], static_cast<int32_t>(group.prompt.size()), prompt_end - 1,
                    true, row);
      row.completion_segments.push_back(static_cast<int64_t>(row.segments.size()));
      row.segments.push_back({.begin = begin,
                              .end = row.num_tokens(),
                              .prefix_begin = prompt_begin,
                              .prefix_end = prompt_end});
    }
  }
  TANDEM_RETURN_IF_ERROR(PlaceSupport(groups, row));
  return row;
}

PackedRow SingleSequenceRow(std::span<const int32_t> token_ids) {
  PackedRow row;
  AppendSegment(token_ids, 0, -1, true, row);
  if (row.num_tokens() == 0) return row;
  row.is_target[0] = false;
  row.segments.push_back({.begin = 0, .end = row.num_tokens()});
  return row;
}

std::vector<std::span<const Segment>> SplitByPrompt(std::span<const Segment> segments) {
  std::vector<std::span<const Segment>> parts;
  size_t begin = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const bool starts_part = segments[i].prefix_begin == segments[i].prefix_end;
    if (starts_part) {
      if (i > begin) parts.push_back(segments.subspan(begin, i - begin));
      begin = i;
    } else {
      TANDEM_CHECK(i > begin && segments[i].prefix_begin == segments[begin].begin &&
                   segments[i].prefix_end == segments[begin].end);
    }
  }
  if (begin < segments.size()) parts.push_back(segments.subspan(begin));
  return parts;
}

}  // namespace tandem::trainer
