// tandem drift replay: one capture under every correction.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/status/statusor.h"
#include "cli/drift/capture_flags.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "drift_lab/pages/replay_report.h"
#include "drift_lab/replay/replay.h"

namespace tandem::cli {
namespace {

struct ReplayFlags {
  drift::ReplayOptions options;
  JsonFlags json;
};

// Returns exit code 3 for a capture that is not comparable, after the findings are printed.
absl::StatusOr<int> RunCommand(ReplayFlags& flags) {
  TANDEM_RETURN_IF_ERROR(FindModelFlags(&flags.options.model, &flags.options.weights));
  TANDEM_RETURN_IF_ERROR(CheckIsOneCapture(flags.options.capture));
  KeepFreedMemory();
  TANDEM_ASSIGN_OR_RETURN(const drift::Replay replay, drift::RunReplay(flags.options, PassLine()));
  TANDEM_RETURN_IF_ERROR(
      PrintResult(flags.json, drift::ReplayTable(replay), drift::ReplayJson(replay)));
  return ToInt(replay.findings.empty() ? ExitCode::kOk : ExitCode::kBadModelOrData);
}

// Methods and thresholds are checked before anything is read, so that a wrong flag gives exit code
// 2.
int Replay(ReplayFlags& flags) {
  const auto selected = drift::SelectVariants(flags.options.selection);
  return selected.ok() ? ExitAfterCapture(RunCommand(flags)) : FailUsage(selected.status());
}

}  // namespace

void AddDriftReplayCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<ReplayFlags>();
  drift::ReplayOptions& options = flags->options;
  CLI::App* sub = drift.add_subcommand(
      "replay", "The same captured batch under every correction: gradients, weights, what is kept");
  AddCaptureArgument(sub, &options.capture);
  AddModelFlags(sub, &options.model, &options.weights);
  sub->add_option(
         "--methods", options.selection.methods,
         "only these, for instance tis,icepop (docs/corrections.md); default: every method")
      ->delimiter(',');
  CLI::Option* const thresholds =
      sub->add_option("--thresholds", options.selection.thresholds,
                      "at these, for instance 1.5,3 or, for bounds, 0.5:2,0.8:1.25; with --methods")
          ->delimiter(',');
  sub->add_flag("--all", options.selection.all, "every listed threshold (docs/replay.md)")
      ->excludes(thresholds);
  CLI::Option* const baselines = sub->add_option(
      "--null", options.baselines,
      "capture of a baseline (lr = 0) run (may be repeated): thresholds from its noise");
  sub->add_option("--null-rate", options.baseline_rates,
                  "share of healthy tokens or completions such a threshold may refuse")
      ->delimiter(',')
      ->check(CLI::Range(1e-9, 0.999999))
      ->needs(baselines)
      ->capture_default_str();
  sub->add_option("--seed", options.seed, "of intervals and sketch")->capture_default_str();
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, kFindingsHelp,
          "tandem drift replay runs/NAME/captures/step_1 --methods tis,icepop");
  SetAction(*sub, chosen, [flags] { return Replay(*flags); });
}

}  // namespace tandem::cli
