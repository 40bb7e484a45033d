// tandem drift inject: a fault test. It makes a short run of the user's own run file with a known
// fault in its servers, and prints what the lab says about it. It answers whether the fault would
// be found with this model and these settings.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/run/local_run.h"
#include "common/base/exit_codes.h"
#include "common/options/command_line.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/pages/attribution_report.h"

namespace tandem::cli {
namespace {

struct InjectFlags {
  std::string config;
  JsonFlags json;
  std::vector<std::string> parameters, sets;
  int steps = 3;
};

// The user's run file, with changes for the fault test: another name, few steps, and a capture of
// the last one.
LocalRunOptions FaultTestOf(const InjectFlags& flags) {
  LocalRunOptions run{.config = flags.config, .sets = flags.sets, .clean = true};
  run.sets.insert(
      run.sets.end(),
      {"trainer.run.name=fault_drill", absl::StrCat("trainer.steps=", flags.steps),
       absl::StrCat("trainer.capture.every=", flags.steps), "trainer.capture.spread=0"});
  for (const std::string& parameter : flags.parameters) {
    run.sets.push_back("drift.inject." + parameter);
  }
  return run;
}

std::string CausesOf(const drift::Attribution& attribution) {
  std::vector<std::string> names;
  for (const drift::ConsistencyFinding& finding : attribution.findings) {
    names.emplace_back(drift::DiscreteFaultName(finding.fault));
  }
  for (const drift::NamedCause& cause : attribution.verdict.named) {
    const std::string name(drift::PartName(cause.part));
    names.push_back(cause.label.empty() ? name : absl::StrCat(name, " (", cause.label, ")"));
  }
  return names.empty() ? "nothing" : absl::StrJoin(names, ", ");
}

int Inject(const InjectFlags& flags) {
  const auto run = RunLocally(FaultTestOf(flags));
  if (!run.ok()) return FailUsage(run.status());
  if (run->exit_code != ExitCode::kOk) return ToInt(run->exit_code);
  drift::AttributionOptions options;
  options.capture = absl::StrCat(run->run_directory, "/captures/step_", flags.steps);
  const auto attribution = drift::Attribute(options, PassLine());
  if (!attribution.ok()) return Fail(attribution.status());
  return Finish(PrintResult(
      flags.json,
      absl::StrCat(drift::AttributionTable(*attribution),
                   "\ninjected: ", absl::StrJoin(flags.parameters, ", "),
                   "\nnamed:    ", CausesOf(*attribution), "\ncapture:  ", options.capture, "\n"),
      drift::AttributionJson(*attribution)));
}

}  // namespace

void AddDriftInjectCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<InjectFlags>();
  CLI::App* sub = drift.add_subcommand("inject",
                                       "A fault test: a short run with a known fault in its "
                                       "servers, and what the lab says about it");
  AddConfigArgument(
      sub, flags->config,
      "run file; its own run is left alone, the fault test's run is called fault_drill");
  sub->add_option(
         "--dial", flags->parameters,
         "PARAMETER=VALUE of section drift.inject, for instance temperature=0.9; may be given "
         "several times")
      ->take_all()
      ->expected(1)
      ->required();
  AddRunSetFlag(sub, flags->sets);
  AddRange(sub, "--steps", flags->steps, 1, 1000, "of the fault test; the last one is captured");
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub,
          "Fault parameters: `tandem run --help-config`, section drift.inject, and "
          "docs/calibration.md.",
          "tandem drift inject examples/demo.yaml --dial temperature=0.9 --steps 3");
  SetAction(*sub, chosen, [flags] { return Inject(*flags); });
}

}  // namespace tandem::cli
