#include "common/base/version.h"

// cmake/git_commit.cmake writes this file at build time, and only when its contents change.
#include "generated/git_commit.inc"

namespace tandem {

std::string_view ProjectVersion() { return TANDEM_VERSION; }

std::string_view GitCommit() { return kTandemGitCommit; }

std::string_view CompilerVersion() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

}  // namespace tandem
