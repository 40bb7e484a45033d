#include "cli/drift/progress_lines.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"

namespace tandem::cli {

std::function<void(const std::string&, double)> PassLine() {
  return [line = std::make_shared<LiveLine>(), start = MonotonicSeconds(), last = std::string()](
             const std::string& what, double done) mutable {
    const std::string elapsed = ShortDuration(MonotonicSeconds() - start);
    if (line->is_terminal()) {
      line->Update(absl::StrCat(ProgressBar(static_cast<int64_t>(1000 * done), 1000, 30), "  ",
                                what, "  ", elapsed));
    } else if (what != last) {
      line->Print(
          absl::StrCat(what, " (", static_cast<int>(100 * done), " % done, ", elapsed, ")"));
    }
    last = what;
  };
}

void StudyLine::Show(int64_t done, int64_t total, const std::string& what) {
  const double left = (MonotonicSeconds() - start_) * static_cast<double>(total - done) /
                      static_cast<double>(std::max<int64_t>(done, 1));
  const std::string text =
      absl::StrCat(ProgressBar(done, total, 20), "  ", what, ", ", ShortDuration(left), " left");
  if (line_.is_terminal()) {
    line_.Update(text);
  } else if (done % 100 == 0 || done == total) {
    line_.Print(text);
  }
}

absl::Status StoppedBy(const StopSignal& stop, const absl::Status& end) {
  if (!absl::IsCancelled(end)) return end;
  return trainer::WithExitCode(end, ExitCodeOfSignal(stop.signal()));
}

int ExitAfterStudy(const absl::Status& status) {
  if (status.ok()) return ToInt(ExitCode::kOk);
  PrintFailure(status);
  if (absl::IsCancelled(status)) return ToInt(trainer::ExitCodeOf(status));
  return ToInt(absl::IsInvalidArgument(status) ? ExitCode::kBadModelOrData : ExitCode::kStorage);
}

}  // namespace tandem::cli
