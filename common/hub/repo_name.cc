#include "common/hub/repo_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace tandem::hub {
namespace {

constexpr size_t kLongestId = 96;
constexpr size_t kCommitDigits = 40;

bool IsNameLetter(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

bool IsBoundaryLetter(char c) { return c != '-' && c != '.'; }

// Why `id` is no name of a repository; empty if it is one.
std::string WhyNoId(const std::string& id) {
  if (std::ranges::count(id, '/') > 1) return "more than one /";
  if (id.empty() || id.size() > kLongestId) return "want 1 to 96 letters";
  const size_t slash = id.find('/');
  for (const std::string& part :
       {id.substr(0, slash),
        slash == std::string::npos ? std::string("x") : id.substr(slash + 1)}) {
    if (part.empty() || !std::ranges::all_of(part, IsNameLetter)) {
      return "want letters, digits, '-', '_' and '.', as ORG/NAME";
    }
    if (!IsBoundaryLetter(part.front()) || !IsBoundaryLetter(part.back())) {
      return "a name does not begin or end with '-' or '.'";
    }
  }
  if (id.find("--") != std::string::npos || id.find("..") != std::string::npos) {
    return "-- and .. are not in names";
  }
  return id.ends_with(".git") ? "a name does not end with .git" : "";
}

// Revisions become paths below refs/, so none may lead out of it.
bool IsRevision(const std::string& revision) {
  return !revision.empty() && revision.front() != '/' && revision.back() != '/' &&
         revision.find("..") == std::string::npos && revision.find("//") == std::string::npos &&
         std::ranges::all_of(revision, [](char c) { return absl::ascii_isgraph(c) && c != '\\'; });
}

}  // namespace

std::string RepoName::Text() const {
  return revision == "main" ? id : absl::StrCat(id, "@", revision);
}

std::string RepoName::FolderName() const {
  return absl::StrCat(type == RepoType::kModel ? "models--" : "datasets--",
                      absl::StrReplaceAll(id, {{"/", "--"}}));
}

absl::StatusOr<RepoName> ParseRepoName(std::string_view text, RepoType type) {
  RepoName name = {.type = type};
  const size_t at = text.find('@');
  name.id = std::string(text.substr(0, at));
  if (const std::string why = WhyNoId(name.id); !why.empty()) {
    return InvalidArgument("'", name.id, "' is no name on the Hugging Face Hub: ", why);
  }
  if (at == std::string_view::npos) return name;
  name.revision = std::string(text.substr(at + 1));
  if (IsRevision(name.revision)) return name;
  return InvalidArgument("'", text,
                         "': what follows the @ is no revision: want a branch, a tag or a commit");
}

bool IsCommit(std::string_view revision) {
  return revision.size() == kCommitDigits && std::ranges::all_of(revision, [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

}  // namespace tandem::hub
