// One file of a snapshot, fetched into blobs/ of the cache. The bytes go to blobs/ETAG.incomplete,
// are checked against the digest that the Hub names them by, and only then get the name
// blobs/ETAG. What an interrupted download left is gone on with. Used by snapshot_fetch.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/hub/hub_client.h"

namespace tandem::hub {

// Called as bytes arrive, with those of the file that are on disk, and its size (-1: not known).
using FileProgress = std::function<void(int64_t bytes, int64_t size)>;

struct BlobRequest {
  RepoName name;
  std::string commit;
  std::string path;  // in the repository
  FileFacts facts;
  std::string blob;  // where the bytes are put: .../blobs/ETAG
};

// Fetches the blob; the caller holds its lock. Broken connections are taken up again where they
// broke, five times without a new byte between them.
//   RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNAVAILABLE  the disk is full or cannot be written (exit
//                      code 7); what is there stays and is gone on with
//   DATA_LOSS          the bytes are not what the Hub names: wrong size or digest; they are removed
//   CANCELLED          interrupted; what is there stays
//   those of HubClient::Get
absl::Status DownloadBlob(HubClient& client, const BlobRequest& request,
                          const FileProgress& progress);

// Keeps others from fetching a blob, as huggingface_hub does: an exclusive flock on
// CACHE/.locks/FOLDER/ETAG.lock, which stays there. On file systems without such locks it excludes
// nobody, and the digests still find what two writers mixed up.
class BlobLock {
 public:
  // Waits for whoever holds it, and calls `waits` once before. `pause` as of HubClient.
  //   CANCELLED  `pause` said so
  //   PERMISSION_DENIED, UNAVAILABLE  the file cannot be made (exit code 7)
  static absl::StatusOr<std::unique_ptr<BlobLock>> Take(const std::string& path,
                                                        const HubClient::Pause& pause,
                                                        const std::function<void()>& waits);
  ~BlobLock();
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;

 private:
  explicit BlobLock(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace tandem::hub
