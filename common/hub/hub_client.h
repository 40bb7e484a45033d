// HubClient: asks the server of the Hugging Face Hub, or a mirror that HF_ENDPOINT names, which
// files a repository has, and for the bytes of a file. Requests:
//
//   GET  /api/models/ID/revision/REVISION?blobs=true   commit and files with sizes and digests
//   HEAD /ID/resolve/COMMIT/PATH                       commit, ETag and size of one file
//   GET  /ID/resolve/COMMIT/PATH                       its bytes, from a byte on (Range)
//
// Data sets have /api/datasets/ and /datasets/ID/resolve/. Large files are redirected to another
// host (a content delivery network), to which the token is never sent. Used by snapshot_fetch.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/http_session.h"
#include "common/hub/hub_settings.h"
#include "common/hub/repo_name.h"

namespace tandem::hub {

struct RepoFile {
  std::string path;
  int64_t size = -1;       // bytes; -1: the server did not say
  std::string blob_id;     // git's SHA-1; may be empty
  std::string lfs_sha256;  // of a large file; else empty
};

struct RepoListing {
  std::string commit;
  std::vector<RepoFile> files;  // sorted by path
};

struct FileFacts {
  std::string etag;   // names the blob in the cache
  int64_t size = -1;  // bytes; -1: the server did not say
};

// Use from one thread.
class HubClient {
 public:
  // Waits for so many seconds, or until the program is to end. True if it is to end.
  using Pause = std::function<bool(double seconds)>;
  // Says why a request is made again, and after how many seconds.
  using Note = std::function<void(const std::string& text)>;  // also of other things worth a line

  HubClient(HubSettings settings, Pause pause, Note note);

  const HubSettings& settings() const { return settings_; }
  void Say(const std::string& text) const { note_(text); }

  // Errors of all methods, each with the exit code that `tandem fetch` documents:
  //   NOT_FOUND           no such repository, revision or file; also what is private, which the
  //                       server does not tell apart (401)
  //   PERMISSION_DENIED   gated: access must be asked for (403); another refusal
  //   UNAUTHENTICATED     the token is not valid
  //   UNAVAILABLE         no connection, or 5xx, after five attempts with growing pauses
  //   RESOURCE_EXHAUSTED  429 after five attempts; Retry-After is followed up to ten minutes
  //   FAILED_PRECONDITION HF_HUB_OFFLINE is set; or what answers is no Hub (see HF_ENDPOINT)
  //   CANCELLED           `pause` said so
  absl::StatusOr<RepoListing> List(const RepoName& name);
  absl::StatusOr<FileFacts> Facts(const RepoName& name, const std::string& commit,
                                  const std::string& path);

  // Asks once for the bytes of a file from `offset` on. `sink` gets them with the position of the
  // first one: 0 where the server does not support ranges, else `offset`. An error of `sink` ends
  // the request and is returned. The errors are the ones above, without further attempts;
  // ShouldRepeat tells which may pass.
  using ByteSink = std::function<absl::Status(int64_t position, std::string_view bytes)>;
  absl::Status Get(const RepoName& name, const std::string& commit, const std::string& path,
                   int64_t offset, const ByteSink& sink);

  // True for an error after which the same request may succeed.
  static bool ShouldRepeat(const absl::Status& status);

  // Waits before attempt `failures` + 1, as long as the server asked for after its last answer, or
  // twice as long each time from half a second on.
  //   CANCELLED           `pause` said so
  //   `why`               `failures` is the limit, or the server asks for more than ten minutes
  absl::Status WaitToRepeat(int64_t failures, const absl::Status& why);

 private:
  HttpAnswer Follow(HttpRequest request, const HttpSession::Sink& sink);
  absl::StatusOr<HttpAnswer> Ask(const HttpRequest& request, const RepoName& name,
                                 const std::string& what, std::string* body);
  absl::Status StatusOf(const HttpAnswer& answer, const RepoName& name, const std::string& what,
                        const std::string& body);
  std::string FileUrl(const RepoName& name, const std::string& commit,
                      const std::string& path) const;

  const HubSettings settings_;
  const Pause pause_;
  const Note note_;
  HttpSession session_;
  double asked_pause_seconds_ = 0;  // Retry-After of the last answer
};

}  // namespace tandem::hub
