// tandem run: starts rollout servers and a trainer on this machine from one YAML file.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/pipeline/pipeline_file.h"
#include "cli/pipeline/pipeline_run.h"
#include "cli/run/local_run.h"
#include "cli/run_file/run_file.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "trainer/presets.h"

namespace tandem::cli {
namespace {

int Run(const LocalRunOptions& options) {
  const auto result = RunLocally(options);
  if (!result.ok()) return FailUsage(result.status());
  if (options.dry_run) return 0;
  std::fprintf(stderr, "run: %s\n", result->run_directory.c_str());
  std::fputs(result->summary.MaskedLine().c_str(), stderr);
  std::fputs(result->summary.AlertsLine().c_str(), stderr);
  std::fputs(result->summary.RestartsLine().c_str(), stderr);
  if (!result->report.empty()) std::fprintf(stderr, "report: %s\n", result->report.c_str());
  return ToInt(result->exit_code);
}

int RunStages(const LocalRunOptions& options, const std::string& from) {
  const auto code = RunPipeline({.file = options.config,
                                 .sets = options.sets,
                                 .from = from,
                                 .clean = options.clean,
                                 .dry_run = options.dry_run});
  return code.ok() ? ToInt(*code) : FailUsage(code.status());
}

int ExplainPreset(const std::string& name) {
  const auto preset = trainer::FindPreset(name);
  if (!preset.ok()) return FailUsage(preset.status());
  std::fputs(trainer::Explain(**preset).c_str(), stdout);
  return 0;
}

}  // namespace

void AddRunCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<LocalRunOptions>();
  CLI::App* sub = app.add_subcommand("run", "Rollout servers and a trainer from one YAML file");
  CLI::Option* config = AddConfigArgument(
      sub, options->config, "run file: sections launch, server, trainer; or pipeline and stages");
  auto reference = std::make_shared<bool>(false);
  sub->add_flag_callback(
         "--help-config",
         [config, reference] {
           config->required(false);
           *reference = true;
         },
         "print every option of a run file, as Markdown")
      ->trigger_on_parse();
  auto preset = std::make_shared<std::string>();
  sub->add_option_function<std::string>(
         "--explain-preset",
         [config, preset](const std::string& name) {
           config->required(false);
           *preset = name;
         },
         "print the options that trainer.preset NAME stands for, with their sources")
      ->trigger_on_parse();
  AddRunSetFlag(sub, options->sets);
  AddRunNumericsFlag(sub, options->sets);
  auto from = std::make_shared<std::string>();
  sub->add_flag(
      "--dry-run", options->dry_run,
      "start nothing: print the resolved configuration, what differs from the defaults, the plan,\n"
      "the prompts, and what is missing: models, files, a device (exit code 3)");
  CLI::Option* resume =
      sub->add_flag("--resume", options->resume, "go on from the last checkpoint");
  CLI::Option* clean =
      sub->add_flag("--clean", options->clean, "delete what an earlier run of this name left")
          ->excludes(resume);
  sub->add_option("--from", *from,
                  "of a pipeline: do this stage and all later ones again; the others that are done "
                  "stay")
      ->excludes(clean);
  EndHelp(
      *sub,
      "The logs of the processes are in <run>/logs. Ctrl-C saves a checkpoint and ends the run; a "
      "second\none ends it at once. A pipeline goes on where it ended, skips what is done, and "
      "takes --set\nSTAGE.KEY=VALUE.",
      "tandem run examples/demo.yaml --set trainer.steps=3 --set server.engine.dtype=fp32");
  SetAction(*sub, chosen, [options, reference, preset, from] {
    if (!preset->empty()) return ExplainPreset(*preset);
    if (*reference) {
      std::fputs(RunFile::Reference().c_str(), stdout);
      return 0;
    }
    if (IsPipelineFile(options->config)) return RunStages(*options, *from);
    if (from->empty()) return Run(*options);
    return FailUsage(InvalidArgument("--from ", *from, ": ", options->config,
                                     " is no pipeline, and has no stages"));
  });
}

}  // namespace tandem::cli
