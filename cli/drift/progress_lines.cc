#include "cli/drift/progress_lines.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tandem::cli {

void PassLine::Show(const std::string& what, double done) {
  const double elapsed = MonotonicSeconds() - start_;
  if (line_.is_terminal()) {
    line_.Update(absl::StrCat(ProgressBar(static_cast<int64_t>(1000 * done), 1000, 30), "  ", what,
                              "  ", ShortDuration(elapsed)));
  } else if (what != last_) {
    line_.Print(absl::StrCat(what, " (", static_cast<int>(100 * done), " % done, ",
                             ShortDuration(elapsed), ")"));
  }
  last_ = what;
}

}  // namespace tandem::cli
