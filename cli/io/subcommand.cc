#include "cli/io/subcommand.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "common/base/exit_codes.h"
#include "common/options/command_line.h"

namespace tandem::cli {

void SetAction(CLI::App& command, Action& chosen, Action work) {
  command.callback([&chosen, work = std::move(work)] { chosen = work; });
}

absl::Status AsUsageError(const absl::Status& status) {
  return trainer::WithExitCode(status, ExitCode::kUsage);
}

void PrintFailure(const absl::Status& status) { tandem::PrintFailure("tandem", status); }

int Fail(const absl::Status& status) {
  PrintFailure(status);
  const ExitCode code = trainer::ExitCodeOf(status);
  const bool is_data = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  const bool is_marked = status.GetPayload(trainer::kExitCodePayload).has_value();
  return ToInt(code == ExitCode::kUsage && is_data && !is_marked ? ExitCode::kBadModelOrData
                                                                 : code);
}

int FailUsage(const absl::Status& status) {
  PrintFailure(status);
  return ToInt(trainer::ExitCodeOf(status));
}

}  // namespace tandem::cli
