#include "common/tables/dataset_files.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/hub/resolve.h"
#include "common/options/nearest_name.h"
#include "common/tables/hub_layout.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMaxFolders = 6;  // depth of a repository that is searched

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool IsPattern(const std::string& path) { return path.find_first_of("*?") != std::string::npos; }

// Where ":SPLIT" begins behind a path that exists; npos without one.
size_t SplitSeparator(const std::string& path) {
  if (Exists(path)) return std::string::npos;
  const size_t colon = path.rfind(':');
  return colon != std::string::npos && Exists(path.substr(0, colon)) ? colon : std::string::npos;
}

// "NAME" and "SPLIT" of NAME:SPLIT; a text without a colon is a name.
std::pair<std::string, std::string> NameAndSplit(const std::string& text) {
  const size_t colon = text.rfind(':');
  return {text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
}

// Whether a text that is no path may name a data set on the Hub. train.jsonl and data/train.jsonl
// are files that are missing.
bool MayBeOnHub(const std::string& text) {
  const std::string name = NameAndSplit(text).first;
  return name.find('/') != std::string::npos && !TableFormatOf(name).has_value() &&
         hub::IsNameOnHub(name);
}

// Files of data that were left out when the data set was fetched would be missing from a split.
absl::StatusOr<DatasetFiles> ReadFetched(const std::string& text, const DatasetPart& part) {
  const auto [name, split] = NameAndSplit(text);
  TANDEM_ASSIGN_OR_RETURN(const hub::Resolved fetched, hub::ResolveDataset(name));
  for (const std::string& file : fetched.not_fetched) {
    if (!TableFormatOf(file).has_value()) continue;
    return InvalidArgument(text, ": ", file, " of the data set was not fetched; `tandem fetch ",
                           "--dataset ", name, "` gets all of it");
  }
  return FindDatasetFiles(fetched.path,
                          {.split = split.empty() ? part.split : split, .subset = part.subset});
}

// Checks that all files have one format.
absl::StatusOr<DatasetFiles> Gather(const std::string& path, std::vector<std::string> names) {
  DatasetFiles dataset;
  for (std::string& name : names) {
    const TableFormat format = TableFormatOf(name).value_or(TableFormat::kJsonLines);
    if (!dataset.files.empty() && dataset.files[0].format != format) {
      return InvalidArgument(
          path, ": ", dataset.files[0].path, " is ",
          std::string(TableFormatName(dataset.files[0].format)), " and ", name, " is ",
          std::string(TableFormatName(format)),
          ": name one file, or files of one format (a pattern such as *.parquet)");
    }
    dataset.files.push_back({std::move(name), format});
  }
  return dataset;
}

absl::StatusOr<DatasetFiles> MatchFiles(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result != 0 || names.empty()) return NotFound(pattern, ": no file matches");
  return Gather(pattern, std::move(names));
}

absl::StatusOr<json> ReadJsonFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) return value;
  return InvalidArgument(path, ": is no JSON object");
}

// The wanted name, or without one the only one or `usual`. `what` is "split" or "subset".
absl::StatusOr<std::string> ChooseName(const std::string& path, const char* what,
                                       const std::string& wanted, const std::string& usual,
                                       const std::vector<std::string>& names) {
  const auto is_there = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (!wanted.empty() && is_there(wanted)) return wanted;
  if (wanted.empty() && names.size() == 1) return names[0];
  if (wanted.empty() && is_there(usual)) return usual;
  const std::string there =
      absl::StrCat("the ", what, "s are ", names.empty() ? "none" : absl::StrJoin(names, ", "));
  if (wanted.empty()) {
    return InvalidArgument(
        path, ": which ", what, " is meant? ", there, "; name one (data.", what,
        what == std::string("split") ? absl::StrCat(", or ", path, ":SPLIT") : "", ")");
  }
  const std::string nearest = NearestIfClose(wanted, names);
  return InvalidArgument(path, ": no ", what, " '", wanted, "'; ", there,
                         nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"));
}

// A directory that Dataset.save_to_disk wrote.
absl::StatusOr<DatasetFiles> ReadSavedDataset(const std::string& path) {
  const std::string state_path = path + "/state.json";
  TANDEM_ASSIGN_OR_RETURN(const json state, ReadJsonFile(state_path));
  const json indices = state.value("_indices_data_files", json());
  if (indices.is_array() && !indices.empty()) {
    return InvalidArgument(
        state_path,
        ": an old version of the library `datasets` wrote a selection of rows "
        "beside them; load and save it with a new one: python -c \"import sys, "
        "datasets as d; d.load_from_disk(sys.argv[1]).save_to_disk(sys.argv[2])\" "
        "IN OUT");
  }
  const json files = state.value("_data_files", json());
  DatasetFiles dataset;
  for (const json& file : files.is_array() ? files : json::array()) {
    const json name = file.is_object() ? file.value("filename", json()) : json();
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos) {
      return InvalidArgument(state_path, ": an entry of \"_data_files\" has no plain \"filename\"");
    }
    dataset.files.push_back({path + "/" + name.get<std::string>(), TableFormat::kArrow});
  }
  if (dataset.files.empty()) return InvalidArgument(state_path, ": no \"_data_files\"");
  const json split = state.value("_split", json());
  if (split.is_string()) dataset.split = split.get<std::string>();
  return dataset;
}

// A directory that DatasetDict.save_to_disk wrote.
absl::StatusOr<DatasetFiles> ReadSavedDict(const std::string& path, const DatasetPart& part) {
  const std::string dict_path = path + "/dataset_dict.json";
  TANDEM_ASSIGN_OR_RETURN(const json dict, ReadJsonFile(dict_path));
  std::vector<std::string> splits;
  const json listed = dict.value("splits", json());
  for (const json& split : listed.is_array() ? listed : json::array()) {
    if (split.is_string()) splits.push_back(split.get<std::string>());
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string split,
                          ChooseName(path, "split", part.split, "train", splits));
  TANDEM_ASSIGN_OR_RETURN(DatasetFiles dataset, ReadSavedDataset(path + "/" + split));
  dataset.split = split;
  return dataset;
}

// Data files below `path`, relative to it, sorted. Hidden ones are none, nor are the library's own.
absl::StatusOr<std::vector<std::string>> ListDataFiles(const std::string& path) {
  constexpr std::string_view kNoData[] = {"dataset_info.json", "dataset_infos.json",
                                          "dataset_dict.json", "state.json", "config.json"};
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(path, error), end;
  for (; !error && walk != end; walk.increment(error)) {
    const std::string name = walk->path().filename().string();
    const bool is_folder = walk->is_directory(error);
    if (is_folder && (name.starts_with('.') || walk.depth() >= kMaxFolders)) {
      walk.disable_recursion_pending();
    }
    if (is_folder || name.starts_with('.') || !TableFormatOf(name).has_value() ||
        std::ranges::find(kNoData, name) != std::end(kNoData)) {
      continue;
    }
    files.push_back(walk->path().lexically_relative(path).string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), path);
  std::ranges::sort(files);
  return files;
}

absl::StatusOr<DatasetFiles> ReadRepository(const std::string& path, const DatasetPart& part) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files, ListDataFiles(path));
  if (files.empty()) {
    return NotFound(
        path,
        ": the directory has no data files: want .jsonl, .json, .csv, .tsv, .parquet or "
        ".arrow, or what save_to_disk of the library `datasets` writes");
  }
  HubSubset chosen{.splits = SplitsOfNames(files)};
  const auto readme = ReadFile(path + "/README.md");
  if (readme.ok()) {
    auto subsets = StatedSubsets(*readme, files);
    if (!subsets.ok()) return InvalidArgument(path, "/README.md: ", subsets.status().message());
    std::vector<std::string> names;
    std::string usual = "default";
    for (const HubSubset& subset : *subsets) {
      names.push_back(subset.name);
      if (subset.is_default) usual = subset.name;
    }
    if (!names.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string name,
                              ChooseName(path, "subset", part.subset, usual, names));
      chosen = *std::ranges::find(*subsets, name, &HubSubset::name);
    }
  }
  if (chosen.name.empty() && !part.subset.empty()) {
    return InvalidArgument(path, ": no subset '", part.subset,
                           "': README.md states none (\"configs\" of its front matter)");
  }
  std::vector<std::string> splits;
  for (const auto& [split, names] : chosen.splits) splits.push_back(split);
  TANDEM_ASSIGN_OR_RETURN(const std::string split,
                          ChooseName(path, "split", part.split, "train", splits));
  std::vector<std::string> names;
  for (const std::string& name :
       std::ranges::find(chosen.splits, split, &SplitFiles::value_type::first)->second) {
    names.push_back(path + "/" + name);
  }
  TANDEM_ASSIGN_OR_RETURN(DatasetFiles dataset, Gather(path, std::move(names)));
  dataset.split = split;
  dataset.subset = chosen.name;
  return dataset;
}

}  // namespace

std::string DatasetFiles::Describe() const {
  std::string text(TableFormatName(files[0].format));
  absl::StrAppend(&text, files.size() == 1 ? "" : absl::StrCat(", ", files.size(), " files"));
  if (!subset.empty()) absl::StrAppend(&text, ", subset ", subset);
  if (!split.empty()) absl::StrAppend(&text, ", split ", split);
  return text;
}

std::string DatasetPlace(const std::string& path) {
  const std::string place = path.substr(0, SplitSeparator(path));
  if (Exists(place)) return place;
  if (MayBeOnHub(path)) {
    const auto fetched = hub::ResolveDataset(NameAndSplit(path).first);
    if (fetched.ok()) return fetched->path;
  }
  if (!IsPattern(place)) return place;
  const size_t slash = place.rfind('/', place.find_first_of("*?"));
  return slash == std::string::npos ? "." : place.substr(0, slash + 1);
}

absl::StatusOr<DatasetFiles> FindDatasetFiles(const std::string& path, const DatasetPart& part) {
  const size_t separator = SplitSeparator(path);
  if (separator != std::string::npos) {
    const std::string base = path.substr(0, separator), split = path.substr(separator + 1);
    return FindDatasetFiles(base, {.split = split, .subset = part.subset});
  }
  if (!Exists(path) && IsPattern(path)) return MatchFiles(path);
  if (!Exists(path)) {
    return MayBeOnHub(path) ? ReadFetched(path, part) : absl::ErrnoToStatus(ENOENT, path);
  }
  if (!IsFolder(path)) {
    if (!part.split.empty()) {
      return InvalidArgument(path, ": is a file and has no split '", part.split,
                             "': splits are those of a directory");
    }
    return Gather(path, {path});
  }
  if (Exists(path + "/dataset_dict.json")) return ReadSavedDict(path, part);
  if (!Exists(path + "/state.json")) return ReadRepository(path, part);
  TANDEM_ASSIGN_OR_RETURN(DatasetFiles dataset, ReadSavedDataset(path));
  if (part.split.empty() || part.split == dataset.split) return dataset;
  return InvalidArgument(
      path, ": no split '", part.split, "'; it is a data set of ",
      dataset.split.empty() ? "no split" : absl::StrCat("the split ", dataset.split));
}

}  // namespace tandem
