#include "common/hub/snapshot_fetch.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;

constexpr char kCacheDirectoryTag[] =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by huggingface_hub.\n"
    "# For information about cache directory tags, see:\n"
    "#\thttps://bford.info/cachedir/\n";

absl::Status AsStorage(const absl::Status& status) {
  return trainer::WithExitCode(status, ExitCode::kStorage);
}

absl::Status MakeParent(const std::string& path) {
  return AsStorage(MakeDirectories(fs::path(path).parent_path().string()));
}

bool IsThere(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// As WriteFileAtomically, for files that several processes may write at once.
absl::Status WriteShared(const std::string& path, const std::string& text) {
  TANDEM_RETURN_IF_ERROR(MakeParent(path));
  const std::string mine = absl::StrFormat("%s.%08x", path, std::random_device()());
  TANDEM_RETURN_IF_ERROR(AsStorage(WriteFileAtomically(mine, text)));
  if (::rename(mine.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return AsStorage(Unavailable("rename to ", path, ": ", std::strerror(errno)));
}

int64_t SizeOnDisk(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(size);
}

std::string Gigabytes(int64_t bytes) {
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

// What the listing says that the blob of a file will be called.
std::string ExpectedBlob(const RepoFile& file) {
  return file.lfs_sha256.empty() ? file.blob_id : file.lfs_sha256;
}

absl::Status NothingChosen(const RepoName& name, const RepoListing& listing,
                           const std::vector<std::string>& pickles) {
  std::vector<std::string> paths;
  for (const RepoFile& file : listing.files) paths.push_back(file.path);
  constexpr size_t kShown = 8;
  const std::string more =
      paths.size() > kShown ? absl::StrCat(" and ", paths.size() - kShown, " more") : "";
  if (paths.size() > kShown) paths.resize(kShown);
  return trainer::WithExitCode(
      InvalidArgument(
          name.TypeWord(), " ", name.Text(), " has no file to fetch",
          pickles.empty()
              ? ""
              : absl::StrCat(
                    " but pickle (", absl::StrJoin(pickles, ", "),
                    "), which Tandem never reads: look for a revision or a copy with safetensors"),
          "; it has ", absl::StrJoin(paths, ", "), more),
      ExitCode::kBadModelOrData);
}

}  // namespace

SnapshotFetch::SnapshotFetch(HubClient* client, Snapshot snapshot, RepoListing listing)
    : client_(client), snapshot_(std::move(snapshot)), listing_(std::move(listing)) {}

absl::StatusOr<std::unique_ptr<SnapshotFetch>> SnapshotFetch::Open(HubClient* client,
                                                                   const RepoName& name,
                                                                   const FileChoice& choice) {
  TANDEM_ASSIGN_OR_RETURN(RepoListing listing, client->List(name));
  Snapshot snapshot = {.name = name,
                       .repo = absl::StrCat(client->settings().cache, "/", name.FolderName()),
                       .commit = listing.commit};
  snapshot.directory = absl::StrCat(snapshot.repo, "/snapshots/", snapshot.commit);
  std::unique_ptr<SnapshotFetch> fetch(
      new SnapshotFetch(client, std::move(snapshot), std::move(listing)));
  for (const RepoFile& file : fetch->listing_.files) {
    if (IsPickle(file.path)) fetch->pickles_.push_back(file.path);
    if (IsChosen(choice, name.type, file.path)) fetch->files_.push_back(file);
  }
  if (fetch->files_.empty()) return NothingChosen(name, fetch->listing_, fetch->pickles_);
  return fetch;
}

std::string SnapshotFetch::PathOf(const RepoFile& file) const {
  return absl::StrCat(snapshot_.directory, "/", file.path);
}

bool SnapshotFetch::IsFetched(const RepoFile& file) const {
  const int64_t size = SizeOnDisk(PathOf(file));  // of what the link leads to
  return size >= 0 && (file.size < 0 || size == file.size);
}

int64_t SnapshotFetch::MissingBytes() const {
  int64_t bytes = 0;
  for (const RepoFile& file : files_) {
    if (IsFetched(file) || file.size < 0) continue;
    const std::string blob = BlobOf(ExpectedBlob(file));
    if (SizeOnDisk(blob) == file.size) continue;
    bytes +=
        std::max<int64_t>(0, file.size - std::max<int64_t>(0, SizeOnDisk(blob + ".incomplete")));
  }
  return bytes;
}

absl::Status SnapshotFetch::CheckRoom() const {
  fs::path place = fs::absolute(snapshot_.repo);
  while (!IsThere(place.string()) && place.has_relative_path()) place = place.parent_path();
  struct statvfs room = {};
  if (::statvfs(place.c_str(), &room) != 0) return absl::OkStatus();  // writing will tell
  const auto free = static_cast<int64_t>(room.f_bavail * room.f_frsize);
  const int64_t missing = MissingBytes();
  if (missing <= free) return absl::OkStatus();
  return AsStorage(ResourceExhausted(snapshot_.name.TypeWord(), " ", snapshot_.name.Text(),
                                     " needs ", Gigabytes(missing), " more, and ",
                                     client_->settings().cache, " has ", Gigabytes(free),
                                     " left: make room, or set HF_HOME to a larger disk"));
}

absl::StatusOr<bool> SnapshotFetch::Fetch(const RepoFile& file, const HubClient::Pause& pause,
                                          const FileProgress& progress,
                                          const std::function<void()>& waits) {
  if (IsFetched(file)) return false;
  TANDEM_ASSIGN_OR_RETURN(const FileFacts facts,
                          client_->Facts(snapshot_.name, snapshot_.commit, file.path));
  const std::string cache = client_->settings().cache, blob = BlobOf(facts.etag),
                    path = PathOf(file),
                    lock_path = absl::StrCat(cache, "/.locks/", snapshot_.name.FolderName(), "/",
                                             facts.etag, ".lock");
  for (const std::string& needed : {blob, path, lock_path})
    TANDEM_RETURN_IF_ERROR(MakeParent(needed));
  if (const std::string tag = cache + "/CACHEDIR.TAG"; !IsThere(tag)) {
    static_cast<void>(WriteShared(tag, kCacheDirectoryTag));  // only backups read it
  }
  TANDEM_ASSIGN_OR_RETURN(const auto lock, BlobLock::Take(lock_path, pause, waits));
  bool fetched = false;
  const bool is_whole = IsThere(blob) && (facts.size < 0 || SizeOnDisk(blob) == facts.size);
  if (!is_whole) {
    TANDEM_RETURN_IF_ERROR(DownloadBlob(*client_,
                                        {.name = snapshot_.name,
                                         .commit = snapshot_.commit,
                                         .path = file.path,
                                         .facts = facts,
                                         .blob = blob},
                                        progress));
    fetched = true;
  }
  if (IsFetched(file)) return fetched;  // another process was first, or the link was there
  TANDEM_RETURN_IF_ERROR(Link(blob, path));
  return fetched;
}

// Makes the snapshot's file: a symlink relative to its folder, so that the cache can be moved. Where
// there are no symlinks, the blob itself is moved there, as huggingface_hub does.
absl::Status SnapshotFetch::Link(const std::string& blob, const std::string& path) const {
  std::error_code ignored;
  fs::remove(path, ignored);  // a link whose blob is gone, or a file of another size
  const std::string target =
      fs::path(blob).lexically_relative(fs::path(path).parent_path()).string();
  if (client_->settings().symlinks && ::symlink(target.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  if (IsThere(path)) return absl::OkStatus();  // another program was first
  if (::rename(blob.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return AsStorage(Unavailable(path, ": ", std::strerror(errno)));
}

absl::Status SnapshotFetch::Finish() {
  const bool is_whole = std::ranges::all_of(
      listing_.files, [this](const RepoFile& file) { return IsFetched(file) && file.size >= 0; });
  if (is_whole) TANDEM_RETURN_IF_ERROR(WriteListing());
  const std::string& revision = snapshot_.name.revision;
  if (revision == snapshot_.commit) return absl::OkStatus();
  const std::string ref = absl::StrCat(snapshot_.repo, "/refs/", revision);
  if (ReadFile(ref).value_or("") == snapshot_.commit) return absl::OkStatus();
  return WriteShared(ref, snapshot_.commit);
}

// trees/COMMIT.json, byte for byte as huggingface_hub writes it (its _tree_cache.py).
absl::Status SnapshotFetch::WriteListing() const {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const RepoFile& file : listing_.files) {
    nlohmann::ordered_json entry = {{"size", file.size}, {"blob_id", file.blob_id}};
    if (!file.lfs_sha256.empty()) {
      entry["lfs_sha256"] = file.lfs_sha256;
      entry["lfs_size"] = file.size;
    }
    files[file.path] = std::move(entry);
  }
  const nlohmann::ordered_json listing = {{"format_version", 1}, {"files", std::move(files)}};
  const std::string path = absl::StrCat(snapshot_.repo, "/trees/", snapshot_.commit, ".json");
  if (IsThere(path)) return absl::OkStatus();
  return WriteShared(path, listing.dump(1, ' ', /*ensure_ascii=*/true));
}

}  // namespace tandem::hub
