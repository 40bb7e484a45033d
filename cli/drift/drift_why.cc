// tandem drift why: why a ratio of a user's own run is not 1, by experiments that tell the causes
// apart.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/status/statusor.h"
#include "cli/drift/capture_flags.h"
#include "cli/drift/progress_lines.h"
#include "cli/drift/why_records.h"
#include "cli/io/output_file.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "drift_lab/pages/why_report.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct WhyFlags {
  drift::AttributionOptions options;
  std::string path;
  std::string html;                                            // of records only
  double referee_seconds = WhyRecordsFlags().referee_seconds;  // of records only
  JsonFlags json;
};

// Returns exit code 3 for a capture that is not comparable, after the findings are printed.
absl::StatusOr<int> RunWhyCommand(WhyFlags& flags) {
  TANDEM_RETURN_IF_ERROR(FindModelFlags(&flags.options.model, &flags.options.weights));
  KeepFreedMemory();
  // Runs and captures are directories. A file that is no records file gets the reader's message.
  std::error_code ignored;
  if (fs::exists(flags.path, ignored) && !fs::is_directory(flags.path, ignored)) {
    return RunWhyRecords({.path = flags.path,
                          .model = flags.options.model,
                          .weights = flags.options.weights,
                          .html = flags.html,
                          .json = flags.json,
                          .seed = flags.options.seed,
                          .referee_seconds = flags.referee_seconds});
  }
  if (!flags.html.empty()) {
    return AsUsageError(InvalidArgument(
        "--html: only a records file has a page here; the page of a capture is written by `tandem "
        "drift attribute --html`"));
  }
  TANDEM_RETURN_IF_ERROR(CheckOutputFolder(flags.json.file));
  TANDEM_ASSIGN_OR_RETURN(const drift::WhyReport report,
                          drift::RunWhy(flags.path, flags.options, PassLine()));
  TANDEM_RETURN_IF_ERROR(PrintResult(flags.json, drift::WhyTable(report), drift::WhyJson(report)));
  return ToInt(report.attribution.findings.empty() ? ExitCode::kOk : ExitCode::kBadModelOrData);
}

}  // namespace

void AddDriftWhyCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<WhyFlags>();
  CLI::App* sub = drift.add_subcommand(
      "why", "Why is my ratio not 1? Experiments that tell the causes apart, and a plain answer");
  sub->add_option(
         "path", flags->path,
         "run directory (its newest capture and its metrics), a capture, or a records file of any\n"
         "two engines (docs/records.md)")
      ->required();
  AddModelFlags(sub, &flags->options.model, &flags->options.weights);
  sub->add_option("--seed", flags->options.seed, "of samples and intervals")->capture_default_str();
  AddJsonFlags(sub, &flags->json);
  sub->add_option("--html", flags->html,
                  "of a records file: also write a page with the verdict, the effect on training, "
                  "densities,\ncurves and the worst tokens to this file");
  AddRefereeSeconds(sub, flags->referee_seconds, "of a records file with --model");
  EndHelp(
      *sub,
      "With a records file: what the numbers alone show, rule out or leave open, without weights.\n"
      "With --model (a directory, or a Hub name in the local cache) the model itself scores the\n"
      "tokens and says which side is off, and by what; --weights is a second directory to "
      "suspect.\n"
      "Exit code 0: there is an answer, be it \"it is 1\" or \"cannot tell\". 3: the capture is "
      "not comparable\n"
      "(findings are printed), cannot be read, or the run has none. 7: a file cannot be written.",
      "tandem drift why runs/NAME --json");
  SetAction(*sub, chosen, [flags] { return ExitAfterCapture(RunWhyCommand(*flags)); });
}

}  // namespace tandem::cli
