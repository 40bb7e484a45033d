#include "common/tables/hub_layout.h"

#include <fnmatch.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "absl/strings/ascii.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

void AddFile(SplitFiles& splits, const std::string& split, const std::string& file) {
  auto found = std::ranges::find(splits, split, &SplitFiles::value_type::first);
  if (found == splits.end()) found = splits.insert(found, {split, {}});
  if (std::ranges::find(found->second, file) == found->second.end()) found->second.push_back(file);
}

bool MatchesFile(const std::string& pattern, const std::string& file) {
  const bool crosses_folders = pattern.find("**") != std::string::npos;
  if (::fnmatch(pattern.c_str(), file.c_str(), crosses_folders ? 0 : FNM_PATHNAME) == 0)
    return true;
  // "**/x" is x in the repository itself too.
  return pattern.starts_with("**/") && MatchesFile(pattern.substr(3), file);
}

absl::Status AddPatterns(const YAML::Node& patterns, const std::string& folder,
                         const std::string& split, const std::vector<std::string>& files,
                         SplitFiles& splits) {
  if (patterns.IsScalar()) {
    std::string pattern = folder + patterns.as<std::string>();
    if (pattern.starts_with("./")) pattern.erase(0, 2);
    for (const std::string& file : files) {
      if (MatchesFile(pattern, file)) AddFile(splits, split, file);
    }
    return absl::OkStatus();
  }
  if (!patterns.IsSequence()) {
    return absl::InvalidArgumentError("want a pattern of files or a list of them");
  }
  for (const YAML::Node& one : patterns) {
    TANDEM_RETURN_IF_ERROR(AddPatterns(one, folder, split, files, splits));
  }
  return absl::OkStatus();
}

// "data_files" of a configuration: patterns, or a list of {split, path}.
absl::Status AddDataFiles(const YAML::Node& data_files, const std::string& folder,
                          const std::vector<std::string>& files, SplitFiles& splits) {
  const bool by_split = data_files.IsSequence() && data_files.size() > 0 && data_files[0].IsMap();
  if (!by_split) return AddPatterns(data_files, folder, "train", files, splits);
  for (const YAML::Node& entry : data_files) {
    if (!entry.IsMap() || !entry["path"]) {
      return absl::InvalidArgumentError("want entries with \"split\" and \"path\" in data_files");
    }
    const std::string split = entry["split"] ? entry["split"].as<std::string>() : "train";
    TANDEM_RETURN_IF_ERROR(AddPatterns(entry["path"], folder, split, files, splits));
  }
  return absl::OkStatus();
}

absl::StatusOr<HubSubset> ReadSubset(const YAML::Node& config,
                                     const std::vector<std::string>& files) {
  if (!config.IsMap() || !config["config_name"]) {
    return absl::InvalidArgumentError("an entry of \"configs\" has no \"config_name\"");
  }
  HubSubset subset{.name = config["config_name"].as<std::string>()};
  subset.is_default = config["default"] && config["default"].as<bool>();
  std::string folder = config["data_dir"] ? config["data_dir"].as<std::string>() : "";
  if (!folder.empty() && !folder.ends_with('/')) folder += '/';
  if (config["data_files"]) {
    TANDEM_RETURN_IF_ERROR(AddDataFiles(config["data_files"], folder, files, subset.splits));
    return subset;
  }
  std::vector<std::string> inside;
  for (const std::string& file : files) {
    if (file.starts_with(folder)) inside.push_back(file);
  }
  subset.splits = SplitsOfNames(inside);
  return subset;
}

// The YAML between two lines of "---" at the start; empty without it.
std::string FrontMatter(std::string_view readme) {
  if (!readme.starts_with("---\n") && !readme.starts_with("---\r\n")) return "";
  const size_t end = readme.find("\n---", 3);
  return end == std::string_view::npos ? "" : std::string(readme.substr(4, end - 3));
}

struct Keyword {
  std::string_view word, split;
};
constexpr Keyword kKeywords[] = {
    {"train", "train"},      {"training", "train"}, {"validation", "validation"},
    {"valid", "validation"}, {"dev", "validation"}, {"val", "validation"},
    {"test", "test"},        {"testing", "test"},   {"eval", "test"},
    {"evaluation", "test"},
};

bool SeparatesWords(char c) {
  return std::string_view("-._ ").find(c) != std::string_view::npos ||
         std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// The split that a word of `name` says.
std::optional<std::string> SplitOfWord(std::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = begin;
    while (end < name.size() && !SeparatesWords(name[end])) ++end;
    for (const Keyword& keyword : kKeywords) {
      if (name.substr(begin, end - begin) == keyword.word) return std::string(keyword.split);
    }
    begin = end + 1;
  }
  return std::nullopt;
}

// SPLIT of "data/SPLIT-00000-of-00002.parquet".
std::optional<std::string> SplitOfShard(const std::string& file) {
  constexpr std::string_view kFolder = "data/", kNumbers = "-00000-of-00000";
  if (!file.starts_with(kFolder)) return std::nullopt;
  const std::string name = file.substr(kFolder.size());
  for (size_t at = 1; at + kNumbers.size() < name.size(); ++at) {
    std::string numbers = name.substr(at, kNumbers.size());
    for (char& c : numbers) c = std::isdigit(static_cast<unsigned char>(c)) != 0 ? '0' : c;
    if (numbers == kNumbers && name.find('/') == std::string::npos) return name.substr(0, at);
  }
  return std::nullopt;
}

std::optional<std::string> SplitOfFolder(const std::string& file) {
  size_t begin = 0;
  for (size_t end = file.find('/'); end != std::string::npos; end = file.find('/', begin)) {
    if (auto split = SplitOfWord(std::string_view(file).substr(begin, end - begin))) return split;
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<std::string> SplitOfName(const std::string& file) {
  return SplitOfWord(std::string_view(file).substr(file.rfind('/') + 1));
}

}  // namespace

absl::StatusOr<std::vector<HubSubset>> StatedSubsets(std::string_view readme,
                                                     const std::vector<std::string>& files) {
  std::vector<HubSubset> subsets;
  try {
    const YAML::Node matter = YAML::Load(FrontMatter(readme));
    if (!matter.IsMap() || !matter["configs"]) return subsets;
    if (!matter["configs"].IsSequence()) {
      return absl::InvalidArgumentError("\"configs\" of the front matter is no list");
    }
    for (const YAML::Node& config : matter["configs"]) {
      TANDEM_ASSIGN_OR_RETURN(HubSubset subset, ReadSubset(config, files));
      subsets.push_back(std::move(subset));
    }
  } catch (const YAML::Exception& error) {
    return InvalidArgument("the front matter is not YAML: ", error.what());
  }
  return subsets;
}

SplitFiles SplitsOfNames(const std::vector<std::string>& files) {
  for (const auto rule : {&SplitOfShard, &SplitOfFolder, &SplitOfName}) {
    SplitFiles splits;
    for (const std::string& file : files) {
      if (const auto split = rule(file)) AddFile(splits, *split, file);
    }
    if (!splits.empty()) return splits;
  }
  if (files.empty()) return {};
  return {{"train", files}};
}

}  // namespace tandem
