// What a run wrote to metrics.jsonl since a place in it, for a page that follows it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::ui {

inline constexpr int64_t kMostFollowedBytes = 4 << 20;  // of one answer; the next goes on there

// {"offset": where the next call goes on, "rows": [{"step", KEY...}], "again": the file is shorter
//  than `offset`, so it was begun anew and the rows are from its beginning}
// Rows have of each of `keys` the number and its bounds, KEY_low and KEY_high. A last line without
// an end is being written and is left for the next call; lines that are no JSON are skipped.
nlohmann::json RowsAfter(const std::string& run_directory, int64_t offset,
                         const std::vector<std::string>& keys);

}  // namespace tandem::ui
