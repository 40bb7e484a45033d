// RepoName: the name of a model or a data set on the Hugging Face Hub, ORG/NAME or NAME, with a
// revision after an @, as users write it in `trainer.model` and --model. Pure.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem::hub {

enum class RepoType { kModel, kDataset };

struct RepoName {
  RepoType type = RepoType::kModel;
  std::string id;                 // "Qwen/Qwen2.5-0.5B-Instruct"
  std::string revision = "main";  // branch, tag, or commit in full or cut short

  std::string Text() const;        // "ORG/NAME", with "@REVISION" unless that is main
  std::string FolderName() const;  // in the cache: "models--Qwen--Qwen2.5-0.5B-Instruct"
  std::string TypeWord() const { return type == RepoType::kModel ? "model" : "data set"; }
};

// Reads NAME or NAME@REVISION. The rules for names are those of huggingface_hub
// (utils/_validators.py).
//   INVALID_ARGUMENT  it is no name; the message says why
absl::StatusOr<RepoName> ParseRepoName(std::string_view text, RepoType type);

// True for 40 lower-case hexadecimal digits: a commit, which never moves.
bool IsCommit(std::string_view revision);

}  // namespace tandem::hub
