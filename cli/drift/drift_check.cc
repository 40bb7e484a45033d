// tandem drift check: can this file be read, what does it hold, and what about it is strange without
// any model.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/drift/capture_flags.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/capture/capture.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "drift_lab/pages/report_parts.h"
#include "drift_lab/records/records_file.h"
#include "drift_lab/records/records_header.h"
#include "drift_lab/records/records_summary.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

struct CheckFlags {
  std::string path;
  JsonFlags json;
};

std::string Share(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// What the header says of the model and the sides: the same members as in the file.
ordered_json HeaderOf(const drift::Records& records) {
  return ordered_json::parse(drift::HeaderJson(records.header));
}

std::string ClaimsLine(const ordered_json& header, const char* side) {
  if (!header.contains(side)) return absl::StrCat("  ", side, " claims nothing\n");
  std::string line = absl::StrCat("  ", side, ":");
  for (const auto& [name, value] : header[side].items()) {
    absl::StrAppend(&line, " ", name, " ",
                    value.is_string() ? value.get<std::string>() : value.dump());
  }
  return line + "\n";
}

std::string CheckTable(const drift::Records& records, const drift::RecordsSummary& summary) {
  std::string text = absl::StrFormat(
      "%s: records (format %d), %d rows, %d tokens, %d of them drawn\n", records.path,
      drift::kRecordsFormat, summary.num_rows, summary.num_tokens, summary.num_drawn);
  const ordered_json header = HeaderOf(records);
  if (header.contains("model")) {
    absl::StrAppend(&text, "  model: ", header["model"].get<std::string>(), "\n");
  }
  text += ClaimsLine(header, "behaviour") + ClaimsLine(header, "proximal");
  absl::StrAppendFormat(&text, "  weight versions: in %s of the rows\n\n",
                        Share(summary.num_with_versions, summary.num_rows));
  const int64_t num_prompt = summary.num_tokens - summary.num_drawn;
  absl::StrAppendFormat(&text, "  %-26s %12s %16s %17s\n", "column", "values", "of drawn tokens",
                        "of other tokens");
  for (const drift::ColumnSummary& column : summary.columns) {
    absl::StrAppendFormat(&text, "  %-26s %12d %16s %17s\n", column.name, column.num_given,
                          Share(column.num_given_drawn, summary.num_drawn),
                          Share(column.num_given - column.num_given_drawn, num_prompt));
  }
  text += summary.findings.empty() ? "\n  Nothing strange in the numbers.\n" : "\n";
  for (const drift::RecordsFinding& finding : summary.findings) {
    absl::StrAppend(&text, "  - ", finding.text, "\n");
  }
  return text;
}

std::string CheckJson(const drift::Records& records, const drift::RecordsSummary& summary) {
  ordered_json out = {{"path", records.path},
                      {"format", drift::kRecordsFormat},
                      {"rows", summary.num_rows},
                      {"tokens", summary.num_tokens},
                      {"drawn_tokens", summary.num_drawn},
                      {"rows_with_versions", summary.num_with_versions},
                      {"header", HeaderOf(records)},
                      {"columns", ordered_json::array()},
                      {"findings", drift::FindingsJson(summary.findings)}};
  for (const drift::ColumnSummary& column : summary.columns) {
    out["columns"].push_back({{"name", column.name},
                              {"values", column.num_given},
                              {"nan", column.num_nan},
                              {"infinite", column.num_infinite},
                              {"values_on_drawn_tokens", column.num_given_drawn}});
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

absl::StatusOr<int> CheckRecords(const CheckFlags& flags) {
  LiveLine line;
  TANDEM_ASSIGN_OR_RETURN(
      const drift::Records records,
      drift::ReadRecords(flags.path, [&](int64_t bytes, int64_t total) {
        constexpr int64_t kMiB = 1 << 20;
        line.Update(absl::StrCat("reading ", ProgressBar(bytes / kMiB, total / kMiB, 30), " MiB"));
      }));
  line.Clear();
  const drift::RecordsSummary summary = drift::Summarize(records);
  TANDEM_RETURN_IF_ERROR(
      PrintResult(flags.json, CheckTable(records, summary), CheckJson(records, summary)));
  return ToInt(ExitCode::kOk);
}

// A directory that a run of this project wrote.
absl::StatusOr<int> CheckCaptureDirectory(const CheckFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const offpolicy::Capture capture, offpolicy::ReadCapture(flags.path));
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.path + "/manifest.json"));
  // ReadCapture has read the same manifest.
  const auto format = ordered_json::parse(text).at("format_version").get<int64_t>();
  const offpolicy::CaptureManifest& manifest = capture.manifest;
  const ordered_json json = {{"path", flags.path},
                             {"format", format},
                             {"rows", capture.num_completions()},
                             {"groups", capture.num_groups()},
                             {"drawn_tokens", capture.num_drawn()},
                             {"step", manifest.step},
                             {"model", manifest.model_path},
                             {"findings", ordered_json::array()}};
  const std::string table = absl::StrFormat(
      "%s: a capture of format %d, as Tandem's own runs write it\n"
      "  %d completions in %d groups, %d drawn tokens, of train step %d\n"
      "  model: %s\n"
      "`tandem drift why` and `tandem drift attribute` read it.\n",
      flags.path, format, capture.num_completions(), capture.num_groups(), capture.num_drawn(),
      manifest.step, manifest.model_path);
  TANDEM_RETURN_IF_ERROR(PrintResult(
      flags.json, table, json.dump(1, ' ', false, ordered_json::error_handler_t::replace)));
  return ToInt(ExitCode::kOk);
}

absl::StatusOr<int> RunCheckCommand(const CheckFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckIsOneCapture(flags.path));
  std::error_code ignored;
  const bool is_capture =
      std::filesystem::exists(std::filesystem::path(flags.path) / "manifest.json", ignored);
  return is_capture ? CheckCaptureDirectory(flags) : CheckRecords(flags);
}

}  // namespace

void AddDriftCheckCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* sub = drift.add_subcommand(
      "check", "Whether a records file of any engines can be read, and what it holds");
  sub->add_option("file", flags->path, "records (docs/records.md), or a capture of a run")
      ->required();
  AddJsonFlags(sub, &flags->json);
  EndHelp(
      *sub,
      "Exit code 0: it can be read, whatever was found in its numbers. 3: it cannot; the message\n"
      "says line or row, field, what was expected and what is there.",
      "tandem drift check records.jsonl");
  SetAction(*sub, chosen, [flags] { return ExitAfterCapture(RunCheckCommand(*flags)); });
}

}  // namespace tandem::cli
