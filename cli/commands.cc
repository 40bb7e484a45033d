// Adds the subcommands of `tandem` in the order of its help, and implements `tandem help`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cli/io/subcommand.h"
#include "common/base/exit_codes.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

// Null if there is none.
const CLI::App* ChildNamed(const CLI::App& command, const std::string& name) {
  const auto children =
      command.get_subcommands([&](const CLI::App* child) { return child->get_name() == name; });
  return children.empty() ? nullptr : children.front();
}

void AddHelpCommand(CLI::App& app, Action& chosen) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* sub = app.add_subcommand("help", "What a command does, and its flags");
  sub->add_option("command", *words, "for instance: drift attribute; default: all commands");
  EndHelp(*sub, "", "tandem help drift attribute");
  SetAction(*sub, chosen, [words, &app] {
    const CLI::App* command = &app;
    for (const std::string& word : *words) {
      command = ChildNamed(*command, word);
      if (command == nullptr) {
        std::fprintf(stderr, "tandem help: there is no command `%s`\ntandem help lists them\n",
                     absl::StrJoin(*words, " ").c_str());
        return ToInt(ExitCode::kUsage);
      }
    }
    words->push_back("--help");
    return RunTandem(*words);
  });
}

void AddDriftCommand(CLI::App& app, Action& chosen) {
  CLI::App* drift = app.add_subcommand(
      "drift",
      "Measure, explain and provoke training-inference mismatch (drift) between the two engines");
  drift->require_subcommand(0, 1);
  AddDriftCaptureCommand(*drift, chosen);
  AddDriftWhyCommand(*drift, chosen);
  AddDriftCompareCommand(*drift, chosen);
  AddDriftImportCommand(*drift, chosen);
  AddDriftCheckCommand(*drift, chosen);
  AddDriftAttributeCommand(*drift, chosen);
  AddDriftCalibrateCommand(*drift, chosen);
  AddDriftInjectCommand(*drift, chosen);
  AddDriftReplayCommand(*drift, chosen);
  AddDriftPhaseCommand(*drift, chosen);
  AddDriftSensitivityCommand(*drift, chosen);
  EndHelp(*drift, "", "tandem drift why runs/NAME");
}

}  // namespace

void AddCommands(CLI::App& app, Action& chosen) {
  app.name("tandem");
  app.require_subcommand(0, 1);
  for (const auto add : {&AddHelpCommand,
                         &AddDemoCommand,
                         &AddRunCommand,
                         &AddServeCommand,
                         &AddTrainCommand,
                         &AddPlanCommand,
                         &AddRanksCommand,
                         &AddRenderCommand,
                         &AddStatusCommand,
                         &AddCertsCommand,
                         &AddLogsCommand,
                         &AddLedgerCommand,
                         &AddReportCommand,
                         &AddUiCommand,
                         &AddFetchCommand,
                         &AddInitCommand,
                         &AddSftCommand,
                         &AddTrainPreferencesCommand,
                         &AddTrainRewardModelCommand,
                         &AddEvalCommand,
                         &AddExportCommand,
                         &AddDataCommand,
                         &AddTokenizeCommand,
                         &AddScoreCommand,
                         &AddLabelStepsCommand,
                         &AddCritiqueReviseCommand,
                         &AddScoreRewardsCommand,
                         &AddServeRewardModelCommand,
                         &AddGenerateCommand,
                         &AddRewardCommand,
                         &AddEnvironmentCommand,
                         &AddSampleCommand,
                         &AddBenchCommand,
                         &AddDriftCommand,
                         &AddVersionCommand}) {
    add(app, chosen);
  }
  EndHelp(
      app,
      "Exit codes: 0 done, 1 internal error, 2 wrong flags or configuration, 3 bad model or data,\n"
      "4 rollout server lost, 5 server owned by another run, 6 delivery of weights not proven,\n"
      "7 storage, 8 too many skipped steps, 9 a child process died, 10 a trainer rank is lost,\n"
      "130 SIGINT, 143 SIGTERM.",
      "tandem demo --steps 3");
}

int RunTandem(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Tandem: a rollout server and a trainer for reinforcement learning of language models, and a "
      "lab that measures and explains the training-inference mismatch (drift) between them.");
  app.set_version_flag("--version", VersionLine());
  Action chosen;
  AddCommands(app, chosen);
  const CurrentArguments current = WithCurrentFlags(arguments);
  for (const std::string& warning : current.warnings) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
  if (const std::optional<int> code = ParseCommandLine(app, current.arguments)) return *code;
  return chosen();
}

}  // namespace tandem::cli
