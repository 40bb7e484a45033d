#include "cli/drift/study_line.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"

namespace tandem::cli {

void StudyLine::Show(int64_t done, int64_t total, const std::string& what) {
  const double left = (MonotonicSeconds() - start_) * static_cast<double>(total - done) /
                      static_cast<double>(std::max<int64_t>(done, 1));
  const std::string text =
      absl::StrCat(ProgressBar(done, total, 20), "  ", what, ", ", ShortDuration(left), " left");
  if (live_.is_terminal()) {
    live_.Update(text);
  } else if (done % 100 == 0 || done == total) {
    live_.Print(text);
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
