#include "cli/report/report.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/io/output_file.h"
#include "cli/io/subcommand.h"
#include "cli/report/html_page.h"
#include "cli/report/run_data.h"
#include "cli/report/run_files.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::report {
namespace {

constexpr std::string_view kReportScripts[] = {
    "dom.js",     "charts.js",      "intervals.js", "tokens.js",           "run.js",
    "drift.js",   "drift_parts.js", "training.js",  "overoptimisation.js", "tables.js",
    "samples.js", "theme.js",       "main.js"};
constexpr std::string_view kRewardModelScripts[] = {"dom.js", "charts.js", "tokens.js", "theme.js",
                                                    "reward_model.js"};
constexpr std::string_view kAttributionScripts[] = {"dom.js",
                                                    "charts.js",
                                                    "intervals.js",
                                                    "tokens.js",
                                                    "attribution.js",
                                                    "attribution_parts.js",
                                                    "theme.js",
                                                    "attribution_map.js",
                                                    "attribution_positions.js",
                                                    "attribution_main.js"};

constexpr std::string_view kRecordsScripts[] = {"dom.js",    "charts.js", "intervals.js",
                                                "tokens.js", "theme.js",  "records.js"};

std::string RunName(const std::string& run_directory, const Json& data) {
  const auto id = data["run"].find("run_id");
  if (id != data["run"].end() && id->is_string()) return id->get<std::string>();
  return std::filesystem::path(run_directory + "/").lexically_normal().parent_path().filename();
}

// The path of the run directory for links in the page. Empty if there is no relative path.
std::string RunDirectoryFrom(const std::string& page, const std::string& run_directory) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(page, error).parent_path();
  return std::filesystem::relative(run_directory, folder, error).generic_string();
}

}  // namespace

absl::StatusOr<std::string> RenderReport(const std::string& run_directory,
                                         const std::string& run_directory_for_links) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_directory, error)) {
    return NotFound("run directory not found: ", run_directory);
  }
  Notices notices;
  const RunFiles files(run_directory, &notices);
  if (!files.Exists("run.json") && !files.Exists("metrics.jsonl") &&
      !files.Exists("events.jsonl")) {
    return NotFound(run_directory,
                    " is not a run directory: it holds none of run.json, "
                    "metrics.jsonl, events.jsonl (docs/run_directory.md)");
  }
  Json data = BuildRunData(files, DataLimits(), &notices);
  data["run_directory"] = run_directory_for_links;
  return RenderHtml(
      {.title = RunName(run_directory, data) + " - Tandem report",
       .data = data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace),
       .scripts = kReportScripts});
}

absl::Status WriteReport(const std::string& run_directory, const std::string& output_path) {
  const std::string path = output_path.empty() ? run_directory + "/report.html" : output_path;
  TANDEM_ASSIGN_OR_RETURN(const std::string page,
                          RenderReport(run_directory, RunDirectoryFrom(path, run_directory)));
  return cli::WriteOutputFile(path, page);
}

std::string AttributionHtml(const std::string& name, std::string data) {
  return RenderHtml({.title = name + " - Tandem attribution",
                     .data = std::move(data),
                     .scripts = kAttributionScripts});
}

std::string RecordsHtml(const std::string& name, std::string data) {
  return RenderHtml(
      {.title = name + " - Tandem records", .data = std::move(data), .scripts = kRecordsScripts});
}

std::string RewardModelHtml(const std::string& name, std::string data) {
  return RenderHtml({.title = name + " - Tandem reward model",
                     .data = std::move(data),
                     .scripts = kRewardModelScripts});
}

}  // namespace tandem::report

namespace tandem::cli {

void AddReportCommand(CLI::App& app, Action& chosen) {
  struct Flags {
    std::string run;
    std::string out;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("report", "One self-contained HTML page of a run");
  sub->add_option("run", flags->run, "run directory, also of a run in progress")->required();
  sub->add_option("-o,--out", flags->out,
                  "file to write; default: report.html in the run directory");
  EndHelp(*sub, "", "tandem report runs/NAME --out NAME.html");
  SetAction(*sub, chosen, [flags] {
    const absl::Status status = report::WriteReport(flags->run, flags->out);
    if (!status.ok()) return Fail(status);
    std::printf("%s\n", (flags->out.empty() ? flags->run + "/report.html" : flags->out).c_str());
    return 0;
  });
}

}  // namespace tandem::cli
