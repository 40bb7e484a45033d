// Which completions share a row (stage 4). Groups stay in order; a group stands in one row where it
// fits, else its completions spread over rows that repeat its prompt. The trainer packs so, and the
// drift lab replays so, because the bits of a row's products may depend on its length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::trainer {

// Some completions of one group: what stands behind one copy of its prompt.
struct GroupPart {
  int64_t group = 0;
  std::vector<int64_t> completions;  // positions in the group, rising
  int64_t num_tokens = 0;            // prompt included
};

struct GroupLengths {
  int64_t prompt = 0;                // tokens
  std::vector<int64_t> completions;  // tokens; 0: left out
};

// A group in as few parts of at most `budget` tokens as the order of its completions allows, each
// with one completion or more; in one part with `whole`. `position` becomes GroupPart::group.
std::vector<GroupPart> SplitGroup(const GroupLengths& group, int64_t position, int64_t budget,
                                  bool whole);

// The parts of groups [begin, end) by row: a row holds parts in order, at most `budget` tokens or
// one part.
std::vector<std::vector<GroupPart>> FillRows(std::span<const GroupLengths> groups, int64_t begin,
                                             int64_t end, int64_t budget, bool whole_groups);

}  // namespace tandem::trainer
