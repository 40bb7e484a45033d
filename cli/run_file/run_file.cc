#include "cli/run_file/run_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/hub/model_options.h"
#include "common/hub/resolve.h"
#include "common/tables/dataset_files.h"
#include "trainer/presets.h"

namespace tandem::cli {

RunFile::RunFile() {
  binder_.Section("launch", "processes of a run",
                  [&](OptionBinder& b) { BindOptions(b, launch_); });
  binder_.Section("server", "rollout server",
                  [&](OptionBinder& b) { rollout::BindOptions(b, server_); });
  binder_.Section("trainer", "trainer",
                  [&](OptionBinder& b) { trainer::BindOptions(b, trainer_); });
  rollout::BindInjection(binder_, server_);
}

absl::StatusOr<std::unique_ptr<RunFile>> RunFile::Load(const std::string& path,
                                                       const std::vector<std::string>& sets) {
  TANDEM_ASSIGN_OR_RETURN(std::string yaml, ReadOptionFile(path));
  return LoadTexts({{std::move(yaml), path}}, sets);
}

absl::StatusOr<std::unique_ptr<RunFile>> RunFile::LoadTexts(const std::vector<Text>& texts,
                                                            const std::vector<std::string>& sets) {
  std::unique_ptr<RunFile> run(new RunFile);
  rollout::ServerOptions& server = run->server_;
  const trainer::TrainerOptions& trainer = run->trainer_;
  TANDEM_RETURN_IF_ERROR(trainer::LoadOverPreset(
      run->binder_, trainer.preset,
      [&] {
        for (const Text& text : texts) {
          TANDEM_RETURN_IF_ERROR(run->binder_.LoadString(text.yaml, text.origin));
        }
        return absl::OkStatus();
      },
      [&] {
        for (const std::string& assignment : sets) {
          TANDEM_RETURN_IF_ERROR(run->binder_.Set(assignment));
        }
        return absl::OkStatus();
      }));
  WeighRewards(run->trainer_);
  if (server.model.empty()) server.model = trainer.model;
  TANDEM_RETURN_IF_ERROR(rollout::CheckOptions(server));
  TANDEM_RETURN_IF_ERROR(trainer::CheckOptions(trainer));
  if (server.tls.directory.empty() != trainer.tls.directory.empty()) {
    return absl::InvalidArgumentError(
        "server.tls and trainer.tls: set both, each to the directory of its own role, or neither");
  }
  if (!server.tls.token_file.empty() && trainer.tls.token_file.empty()) {
    return absl::InvalidArgumentError(
        "server.token_file without trainer.token_file: the servers would turn the trainer away");
  }
  return run;
}

std::vector<std::string> RunFile::input_paths() const {
  std::vector<std::string> paths;
  for (const FoundModel& model : FindModels()) {
    const bool is_new = std::ranges::find(paths, model.value) == paths.end();
    if (is_new && !hub::IsNameOnHub(model.value)) paths.push_back(model.value);
  }
  for (const std::string& path : trainer::TrainPaths(trainer_.data)) {
    paths.push_back(DatasetPlace(path));
  }
  if (!trainer_.data.eval.empty()) paths.push_back(DatasetPlace(trainer_.data.eval));
  if (!trainer_.data.tools_file.empty()) paths.push_back(trainer_.data.tools_file);
  if (!trainer_.probe.file.empty()) paths.push_back(trainer_.probe.file);
  for (const std::string& file : trainer::PythonFiles(trainer_.reward.python)) {
    paths.push_back(file);
  }
  for (const std::string& file : trainer::EnvironmentFiles(trainer_.environment)) {
    paths.push_back(file);
  }
  for (const rpc::TlsOptions* const tls : {&server_.tls, &trainer_.tls}) {
    for (const char* const file : {"tls.crt", "tls.key", "ca.crt"}) {
      if (!tls->directory.empty()) paths.push_back(absl::StrCat(tls->directory, "/", file));
    }
    if (!tls->token_file.empty()) paths.push_back(tls->token_file);
  }
  return paths;
}

std::vector<hub::ModelOption> RunFile::model_options() {
  std::vector<hub::ModelOption> models = trainer::ModelOptions(trainer_);
  models.insert(models.begin() + 1, {"server.model", &server_.model});
  return models;
}

absl::Status RunFile::PinModels(const std::string& before, std::vector<std::string>* notes) {
  return hub::PinModels(model_options(), before, hub::ReadHubSettings(), notes);
}

std::vector<RunFile::FoundModel> RunFile::FindModels() const {
  RunFile copy;  // since the options are pointed to
  copy.trainer_ = trainer_;
  copy.server_ = server_;
  std::vector<FoundModel> found;
  for (const hub::ModelOption& option : copy.model_options()) {
    if (option.value->empty()) continue;
    const auto model = hub::ResolveModel(*option.value);
    found.push_back({.option = option.name,
                     .value = *option.value,
                     .path = model.ok() ? model->path : "",
                     .status = model.status()});
  }
  return found;
}

void RunFile::UseThreads(int64_t rank_threads, int64_t server_threads) {
  int64_t& rank = trainer_.learner.num_threads;
  int64_t& server = server_.engine.num_threads;
  if (rank == 0) rank = rank_threads;
  if (server == 0) server = server_threads;
}

std::vector<std::string> RunFile::Changes() const {
  const RunFile defaults;
  return binder_.ChangesFrom(defaults.binder_);
}

std::string RunFile::ToYaml() const { return binder_.ToYaml(); }

std::string RunFile::Reference() {
  const RunFile defaults;
  return absl::StrCat(
      "# Configuration\n\n"
      "For whoever writes a run file: one YAML file with the sections below describes a run.\n"
      "You need a model and prompts; `examples/demo.yaml` is a small one. First\n"
      "command: `tandem run examples/demo.yaml --dry-run` prints the resolved configuration,\n"
      "what of it differs from the defaults, and what is missing.\n\n"
      "`--set NAME=VALUE` overrides the file. An unknown name, a wrong type and a value out\n"
      "of range are errors that name file, line and the nearest valid name. `tandem run\n"
      "--help-config` writes this page.\n\n",
      defaults.binder_.Markdown());
}

}  // namespace tandem::cli
