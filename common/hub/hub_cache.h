// The cache of the Hugging Face Hub on this machine, in the layout of huggingface_hub:
//
//   CACHE/models--ORG--NAME/blobs/ETAG                 the bytes, once per content
//                          /refs/REVISION              the commit that a branch or tag stood at
//                          /snapshots/COMMIT/PATH      symlinks, ../../blobs/ETAG
//                          /trees/COMMIT.json          sizes of all files of the commit, if cached
//                          /.no_exist/COMMIT/PATH      files that the commit is known not to have
//        /.locks/models--ORG--NAME/ETAG.lock           held (flock) while a blob is fetched
//
// Reads only. Used by resolve.cc and snapshot_fetch.cc.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/hub/repo_name.h"

namespace tandem::hub {

struct Snapshot {
  RepoName name;
  std::string repo;  // CACHE/models--ORG--NAME
  std::string commit;
  std::string directory;  // REPO/snapshots/COMMIT
};

// Finds the snapshot of a name: of a full commit that commit, else what refs/REVISION says, else
// the one snapshot whose commit begins with a short commit of 5 digits or more.
//   NOT_FOUND  what is missing and where it was looked for
//   UNAVAILABLE, PERMISSION_DENIED  a ref cannot be read
absl::StatusOr<Snapshot> FindSnapshot(const std::string& cache, const RepoName& name);

// Files of the snapshot that are named and not there: symlinks whose blob is missing, and shards
// that an index of weights names. Sorted.
std::vector<std::string> BrokenFiles(const Snapshot& snapshot);

// Files of the commit that are not in the snapshot, by the listing in trees/. Empty where no listing
// is cached. Sorted.
std::vector<std::string> FilesNotFetched(const Snapshot& snapshot);

// Files that the commit is known not to have: another program asked the server for them. Sorted.
std::vector<std::string> KnownAbsent(const Snapshot& snapshot);

// Names of blobs whose download was begun and is not finished ("ETAG.incomplete").
std::vector<std::string> UnfinishedBlobs(const std::string& repo);

// Names (ORG/NAME) of all repositories of a type in the cache, sorted.
std::vector<std::string> CachedNames(const std::string& cache, RepoType type);

// "ORG/NAME@COMMIT" of a directory that is a snapshot in a cache of this layout; else empty. Pure.
std::string NameOfSnapshot(const std::string& directory);

}  // namespace tandem::hub
