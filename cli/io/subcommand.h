// The subcommands of `tandem`. Each Add... function declares one on `app` with its flags. If the
// command line names the command, parsing stores its work in `chosen`, and RunTandem runs it after
// all flags have been checked. The work returns the exit code (common/base/exit_codes.h).
//
// To add a command: write AddXCommand in a file of the folder of cli/ that has its topic, declare
// it below, call it in AddCommands (cli/commands.cc), and name the file in `commands` of
// cli/CMakeLists.txt.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace tandem::cli {

using Action = std::function<int()>;

// Stores `work` in `chosen` when the command line names `command`. `chosen` must outlive parsing.
void SetAction(CLI::App& command, Action& chosen, Action work);

// Runs the whole program. `arguments` do not include the program's name.
int RunTandem(const std::vector<std::string>& arguments);

// Adds every command below to the app of the program.
void AddCommands(CLI::App& app, Action& chosen);

// `arguments` with the former names of flags replaced by the current ones, so that scripts continue
// to work, and a warning for each that names the current one. Arguments after a bare `--` belong
// to another program and are not changed. Pure.
struct CurrentArguments {
  std::vector<std::string> arguments;
  std::vector<std::string> warnings;
};
CurrentArguments WithCurrentFlags(std::vector<std::string> arguments);

// Runs.
void AddDemoCommand(CLI::App& app, Action& chosen);
void AddRunCommand(CLI::App& app, Action& chosen);
void AddServeCommand(CLI::App& app, Action& chosen);  // becomes the program rollout_server
void AddTrainCommand(CLI::App& app, Action& chosen);  // becomes the program trainer
void AddRanksCommand(CLI::App& app, Action& chosen);
void AddRenderCommand(CLI::App& app, Action& chosen);
void AddCertsCommand(CLI::App& app, Action& chosen);
void AddLedgerCommand(CLI::App& app, Action& chosen);
void AddLogsCommand(CLI::App& app, Action& chosen);
void AddPlanCommand(CLI::App& app, Action& chosen);
void AddReportCommand(CLI::App& app, Action& chosen);
void AddStatusCommand(CLI::App& app, Action& chosen);
void AddUiCommand(CLI::App& app, Action& chosen);

// Models.
void AddFetchCommand(CLI::App& app, Action& chosen);
void AddInitCommand(CLI::App& app, Action& chosen);
void AddSftCommand(CLI::App& app, Action& chosen);
void AddTrainPreferencesCommand(CLI::App& app, Action& chosen);
void AddTrainRewardModelCommand(CLI::App& app, Action& chosen);
void AddEvalCommand(CLI::App& app, Action& chosen);
void AddExportCommand(CLI::App& app, Action& chosen);

// Data.
void AddDataCommand(CLI::App& app, Action& chosen);

// Tools that read JSON lines and write JSON lines.
void AddTokenizeCommand(CLI::App& app, Action& chosen);
void AddScoreCommand(CLI::App& app, Action& chosen);
void AddCritiqueReviseCommand(CLI::App& app, Action& chosen);
void AddLabelStepsCommand(CLI::App& app, Action& chosen);
void AddScoreRewardsCommand(CLI::App& app, Action& chosen);
void AddServeRewardModelCommand(CLI::App& app, Action& chosen);
void AddGenerateCommand(CLI::App& app, Action& chosen);
void AddRewardCommand(CLI::App& app, Action& chosen);
void AddEnvironmentCommand(CLI::App& app, Action& chosen);
void AddSampleCommand(CLI::App& app, Action& chosen);

// Benchmarks.
void AddBenchCommand(CLI::App& app, Action& chosen);
void AddBenchServeCommand(CLI::App& bench, Action& chosen);
void AddBenchPushCommand(CLI::App& bench, Action& chosen);
void AddBenchTrainCommand(CLI::App& bench, Action& chosen);
void AddBenchSimulateCommand(CLI::App& bench, Action& chosen);

// The drift lab.
void AddDriftCaptureCommand(CLI::App& drift, Action& chosen);
void AddDriftWhyCommand(CLI::App& drift, Action& chosen);
void AddDriftImportCommand(CLI::App& drift, Action& chosen);
void AddDriftCheckCommand(CLI::App& drift, Action& chosen);
void AddDriftCompareCommand(CLI::App& drift, Action& chosen);
void AddDriftAttributeCommand(CLI::App& drift, Action& chosen);
void AddDriftCalibrateCommand(CLI::App& drift, Action& chosen);
void AddDriftInjectCommand(CLI::App& drift, Action& chosen);
void AddDriftReplayCommand(CLI::App& drift, Action& chosen);
void AddDriftPhaseCommand(CLI::App& drift, Action& chosen);
void AddDriftSensitivityCommand(CLI::App& drift, Action& chosen);

void AddVersionCommand(CLI::App& app, Action& chosen);
std::string VersionLine();      // "tandem 0.1.0 (commit 1a2b3c4)"
std::string LibTorchVersion();  // "2.11.0 (AVX512)": with the CPU capability of its kernels
std::string OneDnnVersion();    // "v3.10.2 (Git Hash ...)" or "none"

// Marks `status` as an error of the command line, whatever its code, so that Fail returns exit
// code 2. For mistakes in flags that only the command itself can find.
absl::Status AsUsageError(const absl::Status& status);

// Prints "tandem: MESSAGE" on standard error, as every command does (command_line.h).
void PrintFailure(const absl::Status& status);

// Prints the failure and returns the exit code for a command whose flags were valid: bad input is
// bad data, exit code 3. The code is 2 for AsUsageError, and for an output that exists already
// (ALREADY_EXISTS).
int Fail(const absl::Status& status);
// The same for an error in the flags or in the run file: the exit code that the error carries, else
// ExitCodeFor, which is 2 for most errors.
int FailUsage(const absl::Status& status);

// Returns 0 if `status` is OK, else Fail or FailUsage.
inline int Finish(const absl::Status& status) { return status.ok() ? 0 : Fail(status); }
inline int FinishUsage(const absl::Status& status) { return status.ok() ? 0 : FailUsage(status); }

}  // namespace tandem::cli
