// Identifies this build in `tandem version`, run directories, captures and GetInfo.
#pragma once

#include <string_view>

namespace tandem {

std::string_view ProjectVersion();  // "0.1.0"

// The abbreviated commit, followed by "+" when the work tree had changes; "unknown" outside a git
// checkout.
std::string_view GitCommit();

std::string_view CompilerVersion();  // "g++ 12.2.0"

}  // namespace tandem
