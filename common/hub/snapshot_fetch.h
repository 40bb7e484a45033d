// SnapshotFetch: fetches the files of one commit of a model or a data set into the Hugging Face
// cache of this machine (hub_cache.h has the layout), so that huggingface_hub, transformers and
// Tandem find them there. Used by `tandem fetch`.
//
// The ref of a branch or tag is written last. Until then the name stands for the snapshot that was
// complete before, and an interrupted fetch never makes a name stand for half a model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/hub/blob_download.h"
#include "common/hub/file_choice.h"
#include "common/hub/hub_cache.h"
#include "common/hub/hub_client.h"

namespace tandem::hub {

// Open, then Fetch for each of files(), then Finish. After an error, and after the end of the
// process, the same calls go on with what is there. Use from one thread.
class SnapshotFetch {
 public:
  // Asks the server what the revision has. `client` must outlive this object.
  //   INVALID_ARGUMENT  the choice leaves no file (exit code 3)
  //   those of HubClient::List
  static absl::StatusOr<std::unique_ptr<SnapshotFetch>> Open(HubClient* client,
                                                             const RepoName& name,
                                                             const FileChoice& choice);

  const Snapshot& snapshot() const { return snapshot_; }
  const std::vector<RepoFile>& files() const { return files_; }  // those that are chosen
  size_t num_files_in_repo() const { return listing_.files.size(); }
  const std::vector<std::string>& pickles() const { return pickles_; }  // never fetched
  bool IsFetched(const RepoFile& file) const;      // it is there, with the size that the Hub says
  std::string PathOf(const RepoFile& file) const;  // in the snapshot

  // Bytes of files() that are to be fetched, without what unfinished downloads already have. Files
  // whose size the server did not say count as 0.
  int64_t MissingBytes() const;

  // RESOURCE_EXHAUSTED with exit code 7: the file system of the cache has less room than MissingBytes
  absl::Status CheckRoom() const;

  // Fetches a file unless it is there. Returns whether bytes were fetched. `waits` is called if
  // another process is fetching it.
  //   those of HubClient::Facts, DownloadBlob and BlobLock::Take
  //   PERMISSION_DENIED, UNAVAILABLE  the cache cannot be written (exit code 7)
  absl::StatusOr<bool> Fetch(const RepoFile& file, const HubClient::Pause& pause,
                             const FileProgress& progress, const std::function<void()>& waits);

  // Writes the ref, and the listing of the commit where all of its files are there (with fewer,
  // huggingface_hub would take the snapshot to be broken).
  //   PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE  the cache cannot be written (exit code 7)
  absl::Status Finish();

 private:
  SnapshotFetch(HubClient* client, Snapshot snapshot, RepoListing listing);
  absl::Status Link(const std::string& blob, const std::string& path) const;
  absl::Status WriteListing() const;
  std::string BlobOf(const std::string& etag) const { return snapshot_.repo + "/blobs/" + etag; }

  HubClient* const client_;
  const Snapshot snapshot_;
  const RepoListing listing_;
  std::vector<RepoFile> files_;
  std::vector<std::string> pickles_;
};

}  // namespace tandem::hub
