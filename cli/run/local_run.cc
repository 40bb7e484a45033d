#include "cli/run/local_run.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/data/data_preview.h"
#include "cli/model/model_input.h"
#include "cli/report/report.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/tables/row_reader.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/critic/scored_model.h"
#include "trainer/data/data_options.h"
#include "trainer/environments/environment_check.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/ranks/device_choice.h"
#include "trainer/rewards/rewards.h"
#include "trainer/rollouts/server_lookup.h"

namespace tandem::cli {
namespace {

std::string ProgramFolder(const LaunchOptions& launch) {
  return launch.binaries.empty() ? ProgramDirectory() : launch.binaries;
}

absl::Status CheckPrograms(const std::string& folder) {
  for (const std::string& program : {folder + "/rollout_server", folder + "/trainer"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(program, ignored)) {
      return NotFound(program, " is not there: build it (make build) or set launch.binaries");
    }
  }
  return absl::OkStatus();
}

// The observe address of a server of this machine: the port of server 0 plus its number, as with
// base_port.
std::string AddressOf(const std::string& first, int64_t server) {
  const size_t colon = first.rfind(':');
  int64_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(first.substr(colon + 1), &port) ||
      port == 0) {
    return first;
  }
  return absl::StrCat(first.substr(0, colon + 1), port + server);
}

// Servers that others run, of another engine: the run starts none of its own.
bool HasForeignServers(const RunFile& file) {
  return std::ranges::any_of(file.trainer().servers, [](const std::string& entry) {
    return !trainer::ForeignHostPort(entry).empty();
  });
}

LaunchPlan PlanOf(const RunFile& file, const std::string& config, const LocalRunOptions& options) {
  LaunchPlan plan{.launch = file.launch(),
                  .logs = file.run_directory() + "/logs",
                  .num_steps = file.trainer().steps,
                  .restarts_file = file.run_directory() + "/restarts.jsonl"};
  std::vector<std::string> foreign;
  if (HasForeignServers(file)) {
    foreign = file.trainer().servers;
    plan.launch.num_servers = 0;
  }
  const int64_t base_port = file.launch().base_port;
  const std::string observe = file.server().observe_listen, http = file.server().http_listen;
  const std::string folder = ProgramFolder(file.launch());
  plan.server_argv = [=](int64_t server, int64_t port, const std::string& port_file) {
    if (port == 0 && base_port != 0) port = base_port + server;
    std::vector<std::string> argv = {
        folder + "/rollout_server",       "--config",    config,   "--listen",
        absl::StrCat("127.0.0.1:", port), "--port-file", port_file};
    for (const auto& [option, first] :
         {std::pair("server.observe_listen=", observe), {"server.http_listen=", http}}) {
      if (server == 0 || first.empty()) continue;
      argv.push_back("--set");
      argv.push_back(option + AddressOf(first, server));
    }
    return argv;
  };
  plan.trainer_argv = [=](const std::vector<std::string>& addresses, bool again) {
    std::vector<std::string> argv = {folder + "/trainer",
                                     "--config",
                                     config,
                                     "--servers",
                                     absl::StrJoin(foreign.empty() ? addresses : foreign, ","),
                                     "--progress",
                                     "json"};
    if (again) {
      argv.push_back("--resume-or-start");
    } else if (options.resume) {
      argv.push_back("--resume");
    } else if (options.clean) {
      argv.push_back("--clean");
    }
    return argv;
  };
  return plan;
}

void PrintPlan(const RunFile& file, const LaunchPlan& plan) {
  absl::PrintF("%s\n# Plan\n", file.ToYaml());
  const std::vector<std::string> changes = file.Changes();
  absl::PrintF("# differs from the defaults: %s\n", changes.empty() ? "nothing" : "");
  for (const std::string& change : changes) absl::PrintF("#   %s\n", change);
  absl::PrintF("# run directory: %s\n", file.run_directory());
  for (int64_t i = 0; i < plan.launch.num_servers; ++i) {
    const std::string port_file = absl::StrCat(plan.logs, "/rollout_server_", i, ".port");
    absl::PrintF("# start: %s\n", absl::StrJoin(plan.server_argv(i, 0, port_file), " "));
  }
  for (int64_t rank = 0; rank < plan.launch.num_ranks; ++rank) {
    absl::PrintF("# start: %s\n", absl::StrJoin(plan.trainer_argv({"HOST:PORT"}, false), " "));
  }
  absl::PrintF("# %d train steps, then %s/report.html\n", plan.num_steps, file.run_directory());
}

bool IsModel(const RunFile& file, const std::string& path) {
  const auto models = file.FindModels();
  return std::ranges::find(models, path, &RunFile::FoundModel::value) != models.end();
}

// What each model is: its directory, and its architecture or the field that refuses it.
void PrintModels(const RunFile& file) {
  for (const RunFile::FoundModel& found : file.FindModels()) {
    if (!found.status.ok()) continue;  // CheckInputs says so
    absl::PrintF("# %s: %s", found.option, found.value);
    if (found.path != found.value) absl::PrintF(" -> %s", found.path);
    const bool is_policy = found.option == "trainer.model" || found.option == "server.model";
    const auto config =
        is_policy ? ReadModelConfig(found.path) : trainer::ReadTrunkConfig(found.path);
    absl::PrintF(" (%s)\n", config.ok() ? config->model_type
                                        : absl::StrCat("cannot run: ", config.status().message()));
  }
}

// The configuration that the run had before; empty without one. That of the launcher has all sections;
// until a run ends, config.yaml has only the trainer's.
std::string EarlierConfig(const std::string& run_directory) {
  const auto config = ReadFile(run_directory + "/logs/launch.yaml");
  return config.ok() ? *config : ReadFile(run_directory + "/config.yaml").value_or("");
}

// Checks that both models are directories with config, tokenizer and weights, and that the files of
// data, probe, certificates and tokens can be read. Their contents are checked by their readers.
//   NOT_FOUND with exit code 3  names everything that is missing, one per line
absl::Status CheckInputs(const RunFile& file) {
  std::vector<std::string> missing;
  const auto add = [&](const std::string& what) {
    if (std::ranges::find(missing, what) == missing.end()) missing.push_back(what);
  };
  for (const RunFile::FoundModel& found : file.FindModels()) {
    absl::Status status = found.status;
    const bool is_policy = found.option == "trainer.model" || found.option == "server.model";
    std::string model = found.value;
    if (is_policy) status = FindModel(&model);
    if (!status.ok()) add(std::string(status.message()));
  }
  for (const std::string& path : file.input_paths()) {
    if (IsModel(file, path)) continue;
    if (::access(path.c_str(), R_OK) != 0) add(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (missing.empty()) return absl::OkStatus();
  return trainer::WithExitCode(absl::NotFoundError(absl::StrJoin(missing, "\n")),
                               ExitCode::kBadModelOrData);
}

// The first row of the data, which tells its columns; empty where it cannot be read, which is told
// where prompts are.
std::string FirstRow(const RunFile& file) {
  std::string row;
  const std::vector<std::string> paths = trainer::TrainPaths(file.trainer().data);
  const trainer::DataOptions& data = file.trainer().data;
  auto reader = RowReader::Open(paths.front(), {.split = data.split, .subset = data.subset});
  if (reader.ok()) {
    const auto first = (*reader)->Next();
    if (first.ok() && first->has_value()) row = std::string((*first)->json);
  }
  return row;
}

// Loads the functions in Python of the reward, so that a fault in one is found before the servers
// have loaded a model.
absl::Status CheckRewards(const RunFile& file) {
  TANDEM_ASSIGN_OR_RETURN(const auto rewards,
                          trainer::RewardFunction::Create(file.trainer().reward));
  return trainer::WithExitCode(rewards->Check(FirstRow(file)), ExitCode::kUsage);
}

// Loads the environment, likewise.
absl::Status CheckEnvironment(const RunFile& file) {
  const trainer::EnvironmentOptions& environment = file.trainer().environment;
  if (!HasEnvironment(environment)) return absl::OkStatus();
  std::string model = file.trainer().model;
  TANDEM_RETURN_IF_ERROR(FindModel(&model));
  return trainer::WithExitCode(
      trainer::CheckEnvironment(environment, trainer::ReadChatTemplate(model), FirstRow(file))
          .status(),
      ExitCode::kUsage);
}

// The lines of `tandem data` for what the run trains on.
absl::Status PrintDataSummaries(const RunFile& file, const ModelConfig& config,
                                const Tokenizer& tokenizer) {
  const trainer::DataOptions& data = file.trainer().data;
  const PreviewLimits limits = {
      .max_prompt_tokens = data.max_prompt_tokens,
      .context_tokens = config.max_position_embeddings - LongestCompletion(file.trainer())};
  for (const std::string& path : trainer::TrainPaths(data)) {
    TANDEM_ASSIGN_OR_RETURN(
        const DataPreview preview,
        PreviewData(path, {.split = data.split, .subset = data.subset}, data, &tokenizer,
                    /*num_shown=*/0, [](int64_t) {}));
    for (const std::string& line : SummaryLines(preview, limits)) absl::PrintF("# %s\n", line);
  }
  return absl::OkStatus();
}

// Reads and tokenises the prompts as the trainer will, and prints how many there are.
absl::Status PrintPrompts(const RunFile& file) {
  std::string model = file.trainer().model;
  TANDEM_RETURN_IF_ERROR(FindModel(&model));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(model));
  TANDEM_ASSIGN_OR_RETURN(
      const trainer::DataOptions data,
      trainer::WithTools(file.trainer().data, file.trainer().environment, model));
  TANDEM_ASSIGN_OR_RETURN(const trainer::RunPrompts prompts,
                          trainer::OpenRunPrompts(data, file.trainer().seed,
                                                  LongestOf(file.trainer()), config, *tokenizer));
  size_t num_eval = 0;
  int64_t num_dropped = prompts.train->num_dropped();  // longer than data.max_prompt_tokens
  if (prompts.eval != nullptr) {
    num_eval = prompts.eval->prompts().size();
    num_dropped += prompts.eval->num_dropped();
  }
  absl::PrintF("# prompts: %d to train on, %d held out", prompts.train->prompts().size(), num_eval);
  if (num_dropped > 0) {
    absl::PrintF(", %d left out (over trainer.data.max_prompt_tokens)", num_dropped);
  }
  absl::PrintF("\n");
  return PrintDataSummaries(file, config, *tokenizer);
}

// Every rank checks its device too, but only after the servers have loaded.
absl::Status CheckTrainerDevice(const RunFile& file) {
  return trainer::WithExitCode(trainer::CheckDevice(file.trainer().learner.device,
                                                    static_cast<int>(file.launch().num_ranks) - 1),
                               ExitCode::kBadModelOrData);
}

// Refuses to mix two runs. The trainer checks it too, but only after the servers have loaded.
absl::Status CheckRunDirectory(const RunFile& file, const LocalRunOptions& options) {
  const std::filesystem::path run(file.run_directory());
  std::error_code ignored;
  const bool used = std::filesystem::exists(run / "events.jsonl", ignored);
  if (used && !options.resume && !options.clean) {
    return AlreadyExists(run.string(),
                         " holds a run: --resume goes on with it, --clean starts it anew");
  }
  if (!used && options.resume) {
    return NotFound(run.string(), ": no run to resume is there");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LocalRunResult> RunLocally(const LocalRunOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, RunFile::Load(options.config, options.sets));
  LocalRunResult result{.run_directory = file->run_directory()};
  const std::string config = result.run_directory + "/logs/launch.yaml";
  std::vector<std::string> notes;
  // What cannot be found is reported by CheckInputs, with all else that is missing.
  file->PinModels(options.resume ? EarlierConfig(result.run_directory) : "", &notes).IgnoreError();
  for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  LaunchPlan plan = PlanOf(*file, config, options);
  if (options.dry_run) {
    PrintPlan(*file, plan);
    PrintModels(*file);
  }
  TANDEM_RETURN_IF_ERROR(CheckPrograms(ProgramFolder(file->launch())));
  TANDEM_RETURN_IF_ERROR(CheckRewards(*file));
  TANDEM_RETURN_IF_ERROR(CheckInputs(*file));
  TANDEM_RETURN_IF_ERROR(CheckEnvironment(*file));
  TANDEM_RETURN_IF_ERROR(CheckTrainerDevice(*file));
  if (options.dry_run) {
    TANDEM_RETURN_IF_ERROR(trainer::WithExitCode(PrintPrompts(*file), ExitCode::kBadModelOrData));
    return result;
  }
  TANDEM_RETURN_IF_ERROR(CheckRunDirectory(*file, options));
  std::error_code ignored;
  if (options.clean) std::filesystem::remove_all(result.run_directory + "/logs", ignored);
  TANDEM_RETURN_IF_ERROR(
      trainer::WithExitCode(MakeDirectories(result.run_directory + "/logs"), ExitCode::kStorage));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(config, file->ToYaml()));
  if (!options.resume) std::filesystem::remove(plan.restarts_file, ignored);  // of another run
  const StopSignal stop;
  LiveLine live;
  LaunchResult launched = Launcher(std::move(plan), &stop, &live).Run();
  result.exit_code = launched.exit_code;
  result.summary = std::move(launched.summary);
  // The trainer writes only its own section there, and the run file has the others too.
  const std::string resolved = result.run_directory + "/config.yaml";
  if (std::filesystem::exists(resolved, ignored)) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(resolved, file->ToYaml()));
  }
  if (report::WriteReport(result.run_directory, "").ok()) {
    result.report = result.run_directory + "/report.html";
  }
  return result;
}

}  // namespace tandem::cli
