#include "cli/run_file/run_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
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
  std::vector<std::string> paths = {trainer_.model};
  for (const std::string& path : trainer::TrainPaths(trainer_.data)) {
    paths.push_back(DatasetPlace(path));
  }
  if (server_.model != trainer_.model) paths.push_back(server_.model);
  if (!trainer_.data.eval.empty()) paths.push_back(DatasetPlace(trainer_.data.eval));
  if (!trainer_.data.tools_file.empty()) paths.push_back(trainer_.data.tools_file);
  if (!trainer_.probe.file.empty()) paths.push_back(trainer_.probe.file);
  const std::string& critic = trainer_.learner.step.critic.model;
  if (!critic.empty()) paths.push_back(critic);
  for (const rpc::TlsOptions* const tls : {&server_.tls, &trainer_.tls}) {
    for (const char* const file : {"tls.crt", "tls.key", "ca.crt"}) {
      if (!tls->directory.empty()) paths.push_back(absl::StrCat(tls->directory, "/", file));
    }
    if (!tls->token_file.empty()) paths.push_back(tls->token_file);
  }
  return paths;
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
      "You need a model directory and prompts; `examples/demo.yaml` is a small one. First\n"
      "command: `tandem run examples/demo.yaml --dry-run` prints the resolved configuration,\n"
      "what of it differs from the defaults, and what is missing.\n\n"
      "`--set NAME=VALUE` overrides the file. An unknown name, a wrong type and a value out\n"
      "of range are errors that name file, line and the nearest valid name. `tandem run\n"
      "--help-config` writes this page.\n\n",
      defaults.binder_.Markdown());
}

}  // namespace tandem::cli
