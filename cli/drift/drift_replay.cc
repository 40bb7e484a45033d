// tandem drift replay: one capture under every correction.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/drift/pass_line.h"
#include "cli/drift/run_captures.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "drift_lab/pages/replay_text.h"
#include "drift_lab/replay/replay.h"

namespace tandem::cli {
namespace {

struct ReplayFlags {
  drift::ReplayOptions options;
  JsonFlags json;
};

// Exit code 3 for a capture that is not comparable, after what was found is printed.
absl::StatusOr<int> RunCommand(const ReplayFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckIsOneCapture(flags.options.capture));
  KeepFreedMemory();
  absl::StatusOr<drift::Replay> replay;
  {
    PassLine line;
    replay = drift::RunReplay(flags.options,
                              [&](const std::string& what, double done) { line.Show(what, done); });
  }
  TANDEM_RETURN_IF_ERROR(replay.status());
  TANDEM_RETURN_IF_ERROR(
      PrintResult(flags.json, drift::ReplayTable(*replay), drift::ReplayJson(*replay)));
  return ToInt(replay->findings.empty() ? ExitCode::kOk : ExitCode::kBadModelOrData);
}

// Methods and thresholds are checked before anything is read: a flag that is wrong is exit code 2.
int Replay(const ReplayFlags& flags) {
  const auto selected = drift::SelectVariants(flags.options.selection);
  if (!selected.ok()) {
    PrintFailure(selected.status());
    return ToInt(ExitCode::kUsage);
  }
  const absl::StatusOr<int> code = RunCommand(flags);
  if (code.ok()) return *code;
  // A damaged file is bad data here, not a delivery that failed.
  return Fail(absl::IsDataLoss(code.status()) ? absl::InvalidArgumentError(code.status().message())
                                              : code.status());
}

}  // namespace

void AddDriftReplayCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<ReplayFlags>();
  drift::ReplayOptions& options = flags->options;
  CLI::App* sub = drift.add_subcommand(
      "replay", "The same captured batch under every correction: gradients, weights, what is kept");
  sub->add_option(
         "capture", options.capture,
         "directory of a capture (runs/NAME/captures/step_N); for a run, its captures are listed")
      ->required();
  sub->add_option("--model", options.model,
                  "directory with config.json; default: the one the capture names");
  sub->add_option("--weights", options.weights,
                  "model directory or safetensors file, for weights the capture does not carry");
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
  CLI::Option* const nulls = sub->add_option(
      "--null", options.nulls,
      "capture of a run at learning rate 0 (may be repeated): thresholds from its noise");
  sub->add_option("--null-rate", options.null_rates,
                  "share of healthy tokens or completions such a threshold may refuse")
      ->delimiter(',')
      ->check(CLI::Range(1e-9, 0.999999))
      ->needs(nulls)
      ->capture_default_str();
  sub->add_option("--seed", options.seed, "of intervals and sketch")->capture_default_str();
  AddJsonFlags(sub, &flags->json);
  EndHelp(
      *sub,
      "Findings that make the capture incomparable are printed instead of numbers; the exit code "
      "is\n"
      "then 3, as for a capture that cannot be read.",
      "tandem drift replay runs/NAME/captures/step_1 --methods tis,icepop");
  sub->callback([flags, &chosen] { chosen = [flags] { return Replay(*flags); }; });
}

}  // namespace tandem::cli
