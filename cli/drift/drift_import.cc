// tandem drift import: what another framework or engine wrote becomes records.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/drift/capture_flags.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "drift_lab/importers/importer.h"
#include "drift_lab/pages/report_parts.h"
#include "drift_lab/records/records_file.h"
#include "drift_lab/records/records_summary.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct ImportFlags {
  drift::ImportOptions options;
  std::string out;
  JsonFlags json;
};

// The file to write: in a directory that is there, or is named with a slash, records.jsonl.
absl::StatusOr<std::string> OutputFile(const std::string& out) {
  std::error_code error;
  const bool is_directory = out.ends_with('/') || fs::is_directory(out, error);
  const std::string file = is_directory ? (fs::path(out) / "records.jsonl").string() : out;
  if (fs::exists(file, error) && !drift::IsRecordsFile(file)) {
    return AsUsageError(
        AlreadyExists("--out ", file, ": exists and is no records file; name another"));
  }
  const std::string parent = fs::path(file).parent_path().string();
  if (!parent.empty()) {
    TANDEM_RETURN_IF_ERROR(trainer::WithExitCode(MakeDirectories(parent), ExitCode::kStorage));
  }
  return file;
}

std::string ImportTable(const std::string& file, const drift::ImportedRecords& imported,
                        const drift::RecordsSummary& summary) {
  std::string text =
      absl::StrFormat("%s: %d rows, %d tokens, %d of them drawn, from %d %s\n", file,
                      summary.num_rows, summary.num_tokens, summary.num_drawn, imported.num_files,
                      imported.num_files == 1 ? "file" : "files");
  for (const drift::ColumnSummary& column : summary.columns) {
    absl::StrAppendFormat(&text, "  %-26s %12d values\n", column.name, column.num_given);
  }
  for (const std::string& note : imported.notes) absl::StrAppend(&text, "  - ", note, "\n");
  for (const drift::RecordsFinding& finding : summary.findings) {
    absl::StrAppend(&text, "  - ", finding.text, "\n");
  }
  absl::StrAppend(&text, "Next: tandem drift why ", file, "\n");
  return text;
}

std::string ImportJson(const std::string& file, const ImportFlags& flags,
                       const drift::ImportedRecords& imported,
                       const drift::RecordsSummary& summary) {
  using nlohmann::ordered_json;
  ordered_json out = {{"path", file},
                      {"from", flags.options.from},
                      {"files", imported.num_files},
                      {"rows", summary.num_rows},
                      {"tokens", summary.num_tokens},
                      {"drawn_tokens", summary.num_drawn},
                      {"columns", ordered_json::array()},
                      {"notes", imported.notes},
                      {"findings", drift::FindingsJson(summary.findings)}};
  for (const drift::ColumnSummary& column : summary.columns) {
    out["columns"].push_back({{"name", column.name}, {"values", column.num_given}});
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

absl::StatusOr<int> RunImportCommand(const ImportFlags& flags) {
  if (const absl::Status wrong = drift::CheckImportOptions(flags.options); !wrong.ok()) {
    return AsUsageError(wrong);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string file, OutputFile(flags.out));
  drift::ImportedRecords imported;
  {
    const auto line = PassLine();
    TANDEM_ASSIGN_OR_RETURN(
        imported, drift::ImportRecords(flags.options, [&](const std::string& path, double done) {
          line(absl::StrCat("reading ", path), done);
        }));
  }
  TANDEM_RETURN_IF_ERROR(
      trainer::WithExitCode(drift::WriteRecords(file, imported.records), ExitCode::kStorage));
  const drift::RecordsSummary summary = drift::Summarize(imported.records);
  TANDEM_RETURN_IF_ERROR(PrintResult(flags.json, ImportTable(file, imported, summary),
                                     ImportJson(file, flags, imported, summary)));
  return ToInt(ExitCode::kOk);
}

}  // namespace

void AddDriftImportCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<ImportFlags>();
  CLI::App* sub =
      drift.add_subcommand("import", "Turn what another framework or engine wrote into records");
  sub->add_option("--from", flags->options.from, "whose files they are (the list is below)")
      ->required();
  sub->add_option("path", flags->options.paths,
                  "file, pattern in quotes, or directory; several make one records file")
      ->required();
  sub->add_option("--out", flags->out, "records file to write, or a directory for records.jsonl")
      ->required();
  sub->add_option("--map", flags->options.maps,
                  "FIELD=their.field, with --from jsonl: where a field of docs/records.md is")
      ->allow_extra_args(false);
  sub->add_option("--claim", flags->options.claims,
                  "KEY=VALUE of the records' header: behaviour.temperature=0.7, model=org/name")
      ->allow_extra_args(false);
  AddJsonFlags(sub, &flags->json);
  EndHelp(
      *sub,
      absl::StrCat("--from is one of:\n", drift::ImporterHelp(),
                   "docs/foreign_engines.md says how each of them is switched on.\n\n"
                   "Exit code 0: the records are written, with notes of what the files lack. 2: "
                   "wrong flags, or\n--out is another file. 3: a file cannot be read as what "
                   "--from says; the message says file,\nline, field, what was expected and "
                   "what is there."),
      "tandem drift import --from nemo-rl logs/exp_001 --out records.jsonl");
  SetAction(*sub, chosen, [flags] { return ExitAfterCapture(RunImportCommand(*flags)); });
}

}  // namespace tandem::cli
