#include "common/hub/blob_download.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/hub/file_digest.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;

constexpr double kLockPollSeconds = 0.1;
constexpr mode_t kLockMode =
    0664;  // others of the group may wait for it too, as with huggingface_hub

absl::Status OnDisk(const absl::Status& status) {
  return trainer::WithExitCode(status, ExitCode::kStorage);
}

int64_t BytesOf(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

void RemoveFile(const std::string& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

// One request for the bytes that are missing, appended to `file`. The disk's own error comes out in
// `*disk`, since it is not one to repeat the request after.
absl::Status FetchRest(HubClient& client, const BlobRequest& request, const std::string& file,
                       const FileProgress& progress, absl::Status* disk) {
  int64_t have = BytesOf(file);
  // With the mode that the umask leaves, as huggingface_hub's, for caches that a group shares.
  if (const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666); fd >= 0)
    ::close(fd);
  auto opened = AppendFile::Open(file);
  *disk = opened.status();
  if (!disk->ok()) return *disk;
  const absl::Status status = client.Get(
      request.name, request.commit, request.path, have,
      [&](int64_t position, std::string_view bytes) -> absl::Status {
        if (position < have) {  // the server ignored Range, and starts from the first byte
          have = 0;
          if (::truncate(file.c_str(), 0) != 0) {
            *disk = Unavailable(file, ": ", std::strerror(errno));
            return *disk;
          }
        }
        *disk = (*opened)->Append(bytes);
        TANDEM_RETURN_IF_ERROR(*disk);
        have += static_cast<int64_t>(bytes.size());
        if (request.facts.size >= 0 && have > request.facts.size) {
          return DataLoss(request.path, ": more bytes came than its ", request.facts.size);
        }
        progress(have, request.facts.size);
        return absl::OkStatus();
      });
  if (disk->ok() && status.ok()) *disk = (*opened)->Sync();
  return status;
}

// Whether the file is what the Hub names. Where the name is no digest (some mirrors), the size has
// to do.
absl::Status CheckContents(const BlobRequest& request, const std::string& file) {
  const auto wrong = [&](const std::string& how) {
    return trainer::WithExitCode(
        DataLoss(request.name.TypeWord(), " ", request.name.id, ": ", request.path, " ", how,
                 ": what came was removed; fetch again"),
        ExitCode::kBadModelOrData);
  };
  const int64_t bytes = BytesOf(file);
  if (request.facts.size >= 0 && bytes != request.facts.size) {
    return wrong(absl::StrCat("has ", bytes, " bytes and should have ", request.facts.size));
  }
  const DigestKind kind = DigestKindOf(request.facts.etag);
  if (kind == DigestKind::kUnknown) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::string digest, FileDigest(file, kind));
  if (digest == request.facts.etag) return absl::OkStatus();
  return wrong(absl::StrCat("has the ", kind == DigestKind::kSha256 ? "SHA-256" : "git SHA-1", " ",
                            digest, " and should have ", request.facts.etag));
}

// Fetches until all bytes are there, or no attempt brings more of them.
absl::Status FetchAll(HubClient& client, const BlobRequest& request, const std::string& file,
                      const FileProgress& progress) {
  const int64_t size = request.facts.size;
  for (int64_t failures = 0;;) {
    const int64_t before = BytesOf(file);
    if (size >= 0 && before == size && (size > 0 || fs::exists(file))) return absl::OkStatus();
    if (size >= 0 && before > size) RemoveFile(file);
    absl::Status disk;
    const absl::Status status = FetchRest(client, request, file, progress, &disk);
    if (!disk.ok()) return OnDisk(disk);
    // A whole answer is all that there is: CheckContents says if its size is another. So is what
    // has no bytes behind its end, or more of them than the Hub says.
    if (status.ok() || absl::IsOutOfRange(status) || absl::IsDataLoss(status)) {
      return absl::OkStatus();
    }
    if (!HubClient::ShouldRepeat(status)) return status;
    failures = BytesOf(file) > before ? 1 : failures + 1;
    TANDEM_RETURN_IF_ERROR(
        client.WaitToRepeat(failures, trainer::WithExitCode(status, ExitCode::kServerLost)));
  }
}

}  // namespace

absl::Status DownloadBlob(HubClient& client, const BlobRequest& request,
                          const FileProgress& progress) {
  const std::string file = request.blob + ".incomplete";
  bool was_there = BytesOf(file) > 0;
  if (was_there) {
    client.Say(
        absl::StrCat(request.path, ": goes on after ", BytesOf(file), " bytes that are there"));
  }
  while (true) {
    TANDEM_RETURN_IF_ERROR(FetchAll(client, request, file, progress));
    const absl::Status contents = CheckContents(request, file);
    if (contents.ok()) break;
    RemoveFile(file);
    if (!was_there) return contents;
    was_there = false;  // the part that was there may be what is wrong: once more from nothing
  }
  if (::rename(file.c_str(), request.blob.c_str()) != 0) {
    return OnDisk(Unavailable("rename to ", request.blob, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlobLock>> BlobLock::Take(const std::string& path,
                                                         const HubClient::Pause& pause,
                                                         const std::function<void()>& waits) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kLockMode);
  if (fd < 0) {
    return OnDisk(errno == EACCES || errno == EROFS
                      ? PermissionDenied(path, ": ", std::strerror(errno))
                      : Unavailable(path, ": ", std::strerror(errno)));
  }
  std::unique_ptr<BlobLock> lock(new BlobLock(fd));
  for (bool waited = false; ::flock(fd, LOCK_EX | LOCK_NB) != 0; waited = true) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return lock;  // no such locks here
    if (!waited) waits();
    if (pause(kLockPollSeconds)) {
      return trainer::WithExitCode(Cancelled("interrupted"), ExitCode::kInterrupted);
    }
  }
  return lock;
}

BlobLock::~BlobLock() { ::close(fd_); }

}  // namespace tandem::hub
