#include "cli/report/report.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/report/html_page.h"
#include "cli/report/run_data.h"
#include "cli/report/run_files.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::report {
namespace {

constexpr std::string_view kScripts[] = {"dom.js",    "charts.js",  "intervals.js",   "tokens.js",
                                         "run.js",    "drift.js",   "drift_parts.js", "training.js",
                                         "tables.js", "samples.js", "theme.js",       "main.js"};

std::string RunName(const std::string& run_directory, const Json& data) {
  const auto id = data["run"].find("run_id");
  if (id != data["run"].end() && id->is_string()) return id->get<std::string>();
  return std::filesystem::path(run_directory + "/").lexically_normal().parent_path().filename();
}

// The run directory as a link in the page finds it; empty when there is no way there.
std::string RunDirectoryFrom(const std::string& page, const std::string& run_directory) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(page, error).parent_path();
  return std::filesystem::relative(run_directory, folder, error).generic_string();
}

}  // namespace

absl::Status WriteReport(const std::string& run_directory, const std::string& output_path) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_directory, error)) {
    return absl::NotFoundError(absl::StrCat("run directory not found: ", run_directory));
  }
  Notices notices;
  const RunFiles files(run_directory, &notices);
  if (!files.Exists("run.json") && !files.Exists("metrics.jsonl") &&
      !files.Exists("events.jsonl")) {
    return absl::NotFoundError(absl::StrCat(run_directory,
                                            " is not a run directory: it holds none of run.json, "
                                            "metrics.jsonl, events.jsonl (docs/run_directory.md)"));
  }
  Json data = BuildRunData(files, DataLimits(), &notices);
  const std::string path = output_path.empty() ? run_directory + "/report.html" : output_path;
  data["run_directory"] = RunDirectoryFrom(path, run_directory);
  return WriteFileAtomically(
      path,
      RenderHtml({.title = RunName(run_directory, data) + " - Tandem report",
                  .data = data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace),
                  .scripts = kScripts}));
}

}  // namespace tandem::report
