// Models and data sets by name: turns what a user wrote (`trainer.model`, --model, `data.train`)
// into a directory of this machine, without asking any server. A path that exists always wins;
// what is not there and looks like a name on the Hugging Face Hub is looked up in the Hub's cache.
// Every program calls it once, where its options are read. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/hub/hub_settings.h"
#include "common/hub/repo_name.h"

namespace tandem::hub {

struct Resolved {
  // What to read: the path as it was given, or the snapshot's directory in the cache. For a data set
  // that was given as a path it may also be a file.
  std::string path;
  // All empty for a path.
  std::string name;      // "Qwen/Qwen2.5-0.5B-Instruct"
  std::string revision;  // as asked for: "main"
  std::string commit;    // 40 digits
  // Files that the commit has and the snapshot does not, by the listing that huggingface_hub
  // leaves; empty for a path, and where no listing was left.
  std::vector<std::string> not_fetched;
  // Files that the commit is known not to have (.no_exist of the cache).
  std::vector<std::string> known_absent;

  // What names the same files later too: "NAME@COMMIT", or the path.
  std::string Pinned() const { return name.empty() ? path : name + "@" + commit; }
};

// Resolves a model. The weights of a snapshot are whole, or not there at all: CheckModelDirectory
// of cli/ and the readers of models say what else is missing.
//   NOT_FOUND  no such path, and no such name in the cache; or the snapshot is not complete. The
//              message says where it was looked for, which names are near, and how to fetch it
//   DATA_LOSS  a ref of the cache is damaged
absl::StatusOr<Resolved> ResolveModel(const std::string& text, const HubSettings& settings);
absl::StatusOr<Resolved> ResolveModel(const std::string& text);  // the settings of this process

// Resolves a data set, by the same rules: a file or directory that exists, else NAME[@REVISION] in
// the cache, where data sets are apart from models. The caller chooses among the snapshot's files;
// it must look at not_fetched before it takes a split to be complete. Errors are those of
// ResolveModel.
absl::StatusOr<Resolved> ResolveDataset(const std::string& text, const HubSettings& settings);
absl::StatusOr<Resolved> ResolveDataset(const std::string& text);

// True if `text` is no path that exists and has the form of a name: a launcher passes it on as it
// is, and each machine resolves it.
bool IsNameOnHub(const std::string& text);

// Resolves a model that a resumed run started with as `before` ("NAME@COMMIT"; empty: not known).
// Where `text` is the same name without a commit of its own, it is resolved at the commit of
// `before`, and `*moved` says so if the revision stands at another commit now (else it is cleared).
// Errors are those of ResolveModel.
absl::StatusOr<Resolved> ResolveModelAsBefore(const std::string& text, const std::string& before,
                                              const HubSettings& settings, std::string* moved);

}  // namespace tandem::hub
