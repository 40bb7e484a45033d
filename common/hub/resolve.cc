#include "common/hub/resolve.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/hub/hub_cache.h"
#include "common/options/nearest_name.h"

namespace tandem::hub {
namespace {

constexpr size_t kShownFiles = 3;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// A path that is not there should not be reported as a name that is not there.
bool LooksLikePath(const std::string& text) {
  return text.empty() || text.front() == '/' || text.front() == '.' || text.front() == '~' ||
         text.ends_with('/') || std::ranges::count(text.substr(0, text.find('@')), '/') > 1;
}

std::string FetchCommand(const RepoName& name) {
  const bool is_model = name.type == RepoType::kModel;
  return absl::StrCat("tandem fetch ", is_model ? "" : "--dataset ", name.Text(),
                      " (or hf download ", is_model ? "" : "--repo-type dataset ", name.id,
                      name.revision == "main" ? "" : " --revision " + name.revision, ")");
}

std::string NearNames(const HubSettings& settings, const RepoName& name) {
  const std::vector<std::string> cached = CachedNames(settings.cache, name.type);
  std::vector<std::string> near;
  const std::string nearest = NearestIfClose(name.id, cached);
  if (!nearest.empty() && nearest != name.id) near.push_back(nearest);
  const std::string last = name.id.substr(name.id.find('/') + 1);
  for (const std::string& other : cached) {  // the same name of another organisation
    if (near.size() < kShownFiles && other != nearest && other != name.id &&
        absl::EqualsIgnoreCase(other.substr(other.find('/') + 1), last)) {
      near.push_back(other);
    }
  }
  return near.empty() ? "" : absl::StrCat("; near it the cache has ", absl::StrJoin(near, ", "));
}

std::string FirstFiles(const std::vector<std::string>& files) {
  const size_t shown = std::min(files.size(), kShownFiles);
  std::string text =
      absl::StrJoin(files.begin(), files.begin() + static_cast<int64_t>(shown), ", ");
  if (files.size() > shown) absl::StrAppend(&text, " and ", files.size() - shown, " more");
  return text;
}

// Complete means: what the snapshot itself names is there.
absl::Status CheckComplete(const Snapshot& snapshot) {
  const std::vector<std::string> broken = BrokenFiles(snapshot);
  if (broken.empty()) return absl::OkStatus();
  const std::vector<std::string> unfinished = UnfinishedBlobs(snapshot.repo);
  return NotFound(
      snapshot.name.TypeWord(), " ", snapshot.name.Text(), ": the snapshot ", snapshot.directory,
      " is not complete: ", FirstFiles(broken), broken.size() == 1 ? " is" : " are", " missing",
      unfinished.empty() ? ""
                         : absl::StrCat(" (unfinished in blobs/: ", FirstFiles(unfinished), ")"),
      "; finish it: ", FetchCommand(snapshot.name));
}

absl::StatusOr<Resolved> ResolveName(const RepoName& name, const HubSettings& settings) {
  const auto snapshot = FindSnapshot(settings.cache, name);
  if (absl::IsNotFound(snapshot.status())) {
    return NotFound(name.TypeWord(), " ", name.Text(), ": no such ",
                    name.type == RepoType::kModel ? "directory" : "file or directory", ", and ",
                    snapshot.status().message(), NearNames(settings, name),
                    "; fetch it: ", FetchCommand(name));
  }
  TANDEM_RETURN_IF_ERROR(snapshot.status());
  TANDEM_RETURN_IF_ERROR(CheckComplete(*snapshot));
  return Resolved{.path = snapshot->directory,
                  .name = name.id,
                  .revision = name.revision,
                  .commit = snapshot->commit,
                  .not_fetched = FilesNotFetched(*snapshot),
                  .known_absent = KnownAbsent(*snapshot)};
}

absl::StatusOr<Resolved> Resolve(const std::string& text, RepoType type,
                                 const HubSettings& settings) {
  if (!text.empty() && Exists(text)) return Resolved{.path = text};
  const char* const what = type == RepoType::kModel ? "model" : "data set";
  const char* const wanted = type == RepoType::kModel ? "directory" : "file or directory";
  if (LooksLikePath(text)) return NotFound(what, " ", text, ": no such ", wanted);
  const auto name = ParseRepoName(text, type);
  if (!name.ok()) {
    return NotFound(what, " ", text, ": no such ", wanted, ", and ", name.status().message());
  }
  return ResolveName(*name, settings);
}

}  // namespace

absl::StatusOr<Resolved> ResolveModel(const std::string& text, const HubSettings& settings) {
  return Resolve(text, RepoType::kModel, settings);
}

absl::StatusOr<Resolved> ResolveModel(const std::string& text) {
  return ResolveModel(text, ReadHubSettings());
}

absl::StatusOr<Resolved> ResolveDataset(const std::string& text, const HubSettings& settings) {
  return Resolve(text, RepoType::kDataset, settings);
}

absl::StatusOr<Resolved> ResolveDataset(const std::string& text) {
  return ResolveDataset(text, ReadHubSettings());
}

bool IsNameOnHub(const std::string& text) {
  return !text.empty() && !Exists(text) && !LooksLikePath(text) &&
         ParseRepoName(text, RepoType::kModel).ok();
}

absl::StatusOr<Resolved> ResolveModelAsBefore(const std::string& text, const std::string& before,
                                              const HubSettings& settings, std::string* moved) {
  moved->clear();
  const auto name = ParseRepoName(text, RepoType::kModel),
             old = ParseRepoName(before, RepoType::kModel);
  if (!IsNameOnHub(text) || !name.ok() || !old.ok() || name->id != old->id ||
      !IsCommit(old->revision) || IsCommit(name->revision)) {
    return ResolveModel(text, settings);
  }
  const auto now = FindSnapshot(settings.cache, *name);
  if (now.ok() && now->commit == old->revision) return ResolveModel(text, settings);
  if (now.ok()) {
    *moved = absl::StrCat("model ", name->id, ": ", name->revision, " is at commit ", now->commit,
                          " now; the run goes on with commit ", old->revision,
                          ", which it started with");
  }
  TANDEM_ASSIGN_OR_RETURN(Resolved resolved, ResolveModel(before, settings));
  resolved.revision = name->revision;
  return resolved;
}

}  // namespace tandem::hub
