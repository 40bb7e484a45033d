#include "cli/ui/run_follower.h"

#include <algorithm>
#include <fstream>

namespace tandem::ui {

using Json = nlohmann::json;

Json RowsAfter(const std::string& run_directory, int64_t offset,
               const std::vector<std::string>& keys) {
  Json answer = {{"offset", 0}, {"rows", Json::array()}, {"again", false}};
  std::ifstream file(run_directory + "/metrics.jsonl", std::ios::binary | std::ios::ate);
  const int64_t size = file ? static_cast<int64_t>(file.tellg()) : 0;
  if (offset > size) {
    offset = 0;
    answer["again"] = true;
  }
  std::string text(static_cast<size_t>(std::min(size - offset, kMostFollowedBytes)), '\0');
  file.seekg(offset);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const Json row = Json::parse(text.begin() + static_cast<int64_t>(begin),
                                 text.begin() + static_cast<int64_t>(end), nullptr, false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) continue;
    Json shown = {{"step", row["step"]}};
    for (const std::string& key : keys) {
      for (const char* part : {"", "_low", "_high"}) {
        const auto value = row.find(key + part);
        if (value != row.end() && value->is_number()) shown[key + part] = *value;
      }
    }
    answer["rows"].push_back(std::move(shown));
  }
  answer["offset"] = offset + static_cast<int64_t>(begin);
  return answer;
}

}  // namespace tandem::ui
