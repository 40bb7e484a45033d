#include "cli/io/output_file.h"

#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {

absl::Status CheckOutputFolder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return absl::OkStatus();
  return trainer::WithExitCode(
      NotFound(path, ": cannot be written: there is no folder ", folder.string(),
               "; make it first (mkdir -p ", folder.string(), "), or name another"),
      ExitCode::kStorage);
}

absl::Status WriteOutputFile(const std::string& path, std::string_view contents) {
  TANDEM_RETURN_IF_ERROR(CheckOutputFolder(path));
  return trainer::WithExitCode(WriteFileAtomically(path, contents), ExitCode::kStorage);
}

}  // namespace tandem::cli
