// The subcommands of `tandem`. Each Add* declares one on `app` with its flags; when the command
// line names it, parsing leaves its work in `chosen`, which main runs after every flag was checked.
// The result is the exit code (common/base/exit_codes.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::cli {

using Action = std::function<int()>;

// The whole program: `arguments` follow the program's name.
int RunTandem(const std::vector<std::string>& arguments);

// Every command below, on the app of the program.
void AddCommands(CLI::App& app, Action& chosen);

// The two other programs.
void AddServeCommand(CLI::App& app, Action& chosen);
void AddTrainCommand(CLI::App& app, Action& chosen);

// Plain tools: JSON lines in, JSON lines out.
void AddTokenizeCommand(CLI::App& app, Action& chosen);
void AddScoreCommand(CLI::App& app, Action& chosen);
void AddGenerateCommand(CLI::App& app, Action& chosen);

// Models.
void AddInitCommand(CLI::App& app, Action& chosen);
void AddSftCommand(CLI::App& app, Action& chosen);
void AddEvalCommand(CLI::App& app, Action& chosen);
void AddExportCommand(CLI::App& app, Action& chosen);

// Measurements.
void AddBenchCommand(CLI::App& app, Action& chosen);
// Of the one above.
void AddBenchServeCommand(CLI::App& bench, Action& chosen);
void AddBenchPushCommand(CLI::App& bench, Action& chosen);
void AddBenchTrainCommand(CLI::App& bench, Action& chosen);
void AddBenchSimulateCommand(CLI::App& bench, Action& chosen);

// The drift lab.
void AddDriftCommand(CLI::App& app, Action& chosen);
// Of the one above.
void AddDriftCaptureCommand(CLI::App& drift, Action& chosen);
void AddDriftWhyCommand(CLI::App& drift, Action& chosen);
void AddDriftAttributeCommand(CLI::App& drift, Action& chosen);
void AddDriftCalibrateCommand(CLI::App& drift, Action& chosen);
void AddDriftInjectCommand(CLI::App& drift, Action& chosen);
void AddDriftReplayCommand(CLI::App& drift, Action& chosen);
void AddDriftPhaseCommand(CLI::App& drift, Action& chosen);

// Runs.
void AddCertsCommand(CLI::App& app, Action& chosen);
void AddDemoCommand(CLI::App& app, Action& chosen);
void AddLogsCommand(CLI::App& app, Action& chosen);
void AddRanksCommand(CLI::App& app, Action& chosen);
// Run files as what a cluster takes.
void AddRenderCommand(CLI::App& app, Action& chosen);
// Of the one above.
void AddRenderKubernetesCommand(CLI::App& render, Action& chosen);
void AddRenderSlurmCommand(CLI::App& render, Action& chosen);
void AddReportCommand(CLI::App& app, Action& chosen);
void AddRunCommand(CLI::App& app, Action& chosen);
void AddStatusCommand(CLI::App& app, Action& chosen);
void AddVersionCommand(CLI::App& app, Action& chosen);

}  // namespace tandem::cli
