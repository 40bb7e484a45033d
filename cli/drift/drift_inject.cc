// tandem drift inject: a fault drill: a short run of the user's own run file with a known fault in
// its servers, and what the lab says about it. Would the fault be found here, with this model and
// these settings?
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/drift/pass_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/run/local_run.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/pages/attribution_text.h"

namespace tandem::cli {
namespace {

struct InjectFlags {
  std::string config;
  JsonFlags json;
  std::vector<std::string> dials, sets;
  int steps = 3;
};

// The user's file, and over it the drill: a name of its own, few steps, a capture of the last.
LocalRunOptions DrillOf(const InjectFlags& flags) {
  LocalRunOptions run{.config = flags.config, .sets = flags.sets, .clean = true};
  run.sets.insert(
      run.sets.end(),
      {"trainer.run.name=fault_drill", absl::StrCat("trainer.steps=", flags.steps),
       absl::StrCat("trainer.capture.every=", flags.steps), "trainer.capture.spread=0"});
  for (const std::string& dial : flags.dials) run.sets.push_back("drift.inject." + dial);
  return run;
}

std::string CausesOf(const drift::Attribution& attribution) {
  std::vector<std::string> names;
  for (const drift::GateFinding& finding : attribution.findings) {
    names.emplace_back(drift::DiscreteFaultName(finding.fault));
  }
  for (const drift::NamedCause& cause : attribution.verdict.named) {
    names.push_back(cause.label.empty() ? cause.cause
                                        : absl::StrCat(cause.cause, " (", cause.label, ")"));
  }
  return names.empty() ? "nothing" : absl::StrJoin(names, ", ");
}

int Inject(const InjectFlags& flags) {
  const auto run = RunLocally(DrillOf(flags));
  if (!run.ok()) {
    PrintFailure(run.status());
    return ToInt(trainer::ExitCodeOf(run.status()));
  }
  if (run->exit_code != ExitCode::kOk) return ToInt(run->exit_code);
  PassLine line;
  drift::AttributionOptions options;
  options.capture = absl::StrCat(run->run_directory, "/captures/step_", flags.steps);
  const auto attribution = drift::Attribute(
      options, [&](const std::string& what, double done) { line.Show(what, done); });
  if (!attribution.ok()) return Fail(attribution.status());
  const absl::Status printed = PrintResult(
      flags.json,
      absl::StrCat(drift::AttributionTable(*attribution),
                   "\ninjected: ", absl::StrJoin(flags.dials, ", "),
                   "\nnamed:    ", CausesOf(*attribution), "\ncapture:  ", options.capture, "\n"),
      drift::AttributionJson(*attribution));
  return printed.ok() ? 0 : Fail(printed);
}

}  // namespace

void AddDriftInjectCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<InjectFlags>();
  CLI::App* sub = drift.add_subcommand(
      "inject",
      "A fault drill: a short run with a known fault in its servers, and what the lab says of it");
  AddConfigArgument(sub, flags->config,
                    "run file; its run is left alone, the drill is called fault_drill");
  sub->add_option("--dial", flags->dials,
                  "DIAL=VALUE of section drift.inject, for instance temperature=0.9; may be given "
                  "several times")
      ->take_all()
      ->expected(1)
      ->required();
  AddRunSetFlag(sub, flags->sets);
  sub->add_option("--steps", flags->steps, "of the drill; the last one is captured")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub,
          "The dials: `tandem run --help-config`, section drift.inject, and docs/calibration.md.",
          "tandem drift inject examples/demo.yaml --dial temperature=0.9 --steps 3");
  sub->callback([flags, &chosen] { chosen = [flags] { return Inject(*flags); }; });
}

}  // namespace tandem::cli
