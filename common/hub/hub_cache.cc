#include "common/hub/hub_cache.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kShortestCommit = 5;  // as huggingface_hub's REGEX_COMMIT_OID
constexpr char kIndexEnd[] = ".safetensors.index.json";

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

bool IsShortCommit(const std::string& revision) {
  return revision.size() >= kShortestCommit &&
         IsCommit(revision + std::string(40 - std::min<size_t>(40, revision.size()), '0'));
}

// The commit of a revision that is no full commit; empty if the cache does not know it.
absl::StatusOr<std::string> CommitOf(const std::string& repo, const std::string& revision) {
  const std::string ref = absl::StrCat(repo, "/refs/", revision);
  std::error_code ignored;
  if (fs::is_regular_file(ref, ignored)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(ref));
    std::string commit(absl::StripAsciiWhitespace(text));
    if (IsCommit(commit)) return commit;
    return DataLoss(ref, " holds '", commit.substr(0, 60),
                    "' and not a commit of 40 digits; remove it and fetch again");
  }
  std::string found;
  if (!IsShortCommit(revision)) return found;
  for (const std::string& commit : NamesIn(repo + "/snapshots")) {
    if (!commit.starts_with(revision)) continue;
    if (!found.empty()) {
      return NotFound("commits ", found, " and ", commit, " both begin with ", revision);
    }
    found = commit;
  }
  return found;
}

// The shards that the index of a snapshot names.
std::set<std::string> ShardsOf(const std::string& index) {
  std::set<std::string> shards;
  const auto text = ReadFile(index);
  const json parsed = json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return shards;
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object()) return shards;
  for (const auto& shard : *map) {
    if (shard.is_string()) shards.insert(shard.get<std::string>());
  }
  return shards;
}

}  // namespace

absl::StatusOr<Snapshot> FindSnapshot(const std::string& cache, const RepoName& name) {
  Snapshot snapshot = {.name = name, .repo = absl::StrCat(cache, "/", name.FolderName())};
  std::error_code ignored;
  if (!fs::is_directory(snapshot.repo, ignored)) {
    return NotFound("it is not in the Hugging Face cache: no ", snapshot.repo);
  }
  if (IsCommit(name.revision)) {
    snapshot.commit = name.revision;
  } else {
    TANDEM_ASSIGN_OR_RETURN(snapshot.commit, CommitOf(snapshot.repo, name.revision));
  }
  const std::vector<std::string> commits = NamesIn(snapshot.repo + "/snapshots");
  if (!snapshot.commit.empty()) {
    snapshot.directory = absl::StrCat(snapshot.repo, "/snapshots/", snapshot.commit);
    if (fs::is_directory(snapshot.directory, ignored)) return snapshot;
  }
  return NotFound(
      "the cache has no revision ", name.revision, " of it: no ",
      snapshot.commit.empty() ? snapshot.repo + "/refs/" + name.revision : snapshot.directory,
      commits.empty() ? ""
                      : absl::StrCat("; it has commit ", absl::StrJoin(commits, ", "), ", which ",
                                     name.id, "@COMMIT names"));
}

std::vector<std::string> BrokenFiles(const Snapshot& snapshot) {
  std::set<std::string> broken;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(snapshot.directory, error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const std::string path =
        fs::path(entry->path()).lexically_relative(snapshot.directory).string();
    if (!fs::exists(entry->path(), ignored)) broken.insert(path);
    if (!path.ends_with(kIndexEnd)) continue;
    for (const std::string& shard : ShardsOf(entry->path().string())) {
      if (!fs::exists(entry->path().parent_path() / shard, ignored)) broken.insert(shard);
    }
  }
  return {broken.begin(), broken.end()};
}

std::vector<std::string> FilesNotFetched(const Snapshot& snapshot) {
  std::vector<std::string> missing;
  const auto text = ReadFile(absl::StrCat(snapshot.repo, "/trees/", snapshot.commit, ".json"));
  const json parsed = json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  const auto files = parsed.is_object() ? parsed.find("files") : parsed.end();
  if (!parsed.is_object() || files == parsed.end() || !files->is_object()) return missing;
  for (const auto& file : files->items()) {
    std::error_code ignored;
    if (!fs::exists(fs::path(snapshot.directory) / file.key(), ignored))
      missing.push_back(file.key());
  }
  std::ranges::sort(missing);
  return missing;
}

std::vector<std::string> KnownAbsent(const Snapshot& snapshot) {
  const std::string root = absl::StrCat(snapshot.repo, "/.no_exist/", snapshot.commit);
  std::vector<std::string> absent;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_regular_file(ignored)) {
      absent.push_back(fs::path(entry->path()).lexically_relative(root).string());
    }
  }
  std::ranges::sort(absent);
  return absent;
}

std::vector<std::string> UnfinishedBlobs(const std::string& repo) {
  std::vector<std::string> names = NamesIn(repo + "/blobs");
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".incomplete"); });
  return names;
}

std::vector<std::string> CachedNames(const std::string& cache, RepoType type) {
  const std::string prefix = type == RepoType::kModel ? "models--" : "datasets--";
  std::vector<std::string> names;
  for (const std::string& folder : NamesIn(cache)) {
    if (!folder.starts_with(prefix)) continue;
    names.push_back(absl::StrReplaceAll(folder.substr(prefix.size()), {{"--", "/"}}));
  }
  return names;
}

std::string NameOfSnapshot(const std::string& directory) {
  const fs::path path = fs::path(directory + "/").parent_path();
  const std::string commit = path.filename().string(),
                    folder = path.parent_path().parent_path().filename().string();
  if (!IsCommit(commit) || path.parent_path().filename() != "snapshots") return "";
  for (const std::string prefix : {"models--", "datasets--"}) {
    if (!folder.starts_with(prefix)) continue;
    return absl::StrCat(absl::StrReplaceAll(folder.substr(prefix.size()), {{"--", "/"}}), "@",
                        commit);
  }
  return "";
}

}  // namespace tandem::hub
