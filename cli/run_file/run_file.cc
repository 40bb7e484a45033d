#include "cli/run_file/run_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/options/options.h"

namespace tandem::cli {

struct RunFile::Impl {
  LaunchOptions launch;
  rollout::ServerOptions server;
  trainer::TrainerOptions trainer;
  OptionBinder binder;
};

RunFile::RunFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  Impl& file = *impl_;
  file.binder.Section("launch", "processes of a run",
                      [&](OptionBinder& b) { BindOptions(b, file.launch); });
  file.binder.Section("server", "rollout server",
                      [&](OptionBinder& b) { rollout::BindOptions(b, file.server); });
  file.binder.Section("trainer", "trainer",
                      [&](OptionBinder& b) { trainer::BindOptions(b, file.trainer); });
  rollout::BindInjection(file.binder, file.server);
}

RunFile::~RunFile() = default;

absl::StatusOr<std::unique_ptr<RunFile>> RunFile::Load(const std::string& path,
                                                       const std::vector<std::string>& sets) {
  std::unique_ptr<RunFile> run(new RunFile(std::make_unique<Impl>()));
  Impl& file = *run->impl_;
  TANDEM_RETURN_IF_ERROR(file.binder.LoadFile(path));
  for (const std::string& assignment : sets) {
    TANDEM_RETURN_IF_ERROR(file.binder.Set(assignment));
  }
  if (file.server.model.empty()) file.server.model = file.trainer.model;
  TANDEM_RETURN_IF_ERROR(rollout::CheckOptions(file.server));
  TANDEM_RETURN_IF_ERROR(trainer::CheckOptions(file.trainer));
  if (file.server.tls.directory.empty() != file.trainer.tls.directory.empty()) {
    return absl::InvalidArgumentError(
        "server.tls and trainer.tls: set both, each to the directory of its own role, or neither");
  }
  if (!file.server.tls.token_file.empty() && file.trainer.tls.token_file.empty()) {
    return absl::InvalidArgumentError(
        "server.token_file without trainer.token_file: the servers would turn the trainer away");
  }
  return run;
}

const LaunchOptions& RunFile::launch() const { return impl_->launch; }
const rollout::ServerOptions& RunFile::server() const { return impl_->server; }
const trainer::TrainerOptions& RunFile::trainer() const { return impl_->trainer; }
std::string RunFile::server_model() const { return impl_->server.model; }
std::string RunFile::trainer_model() const { return impl_->trainer.model; }
std::string RunFile::run_directory() const {
  return absl::StrCat(impl_->trainer.out, "/", impl_->trainer.run_name);
}
int64_t RunFile::num_steps() const { return impl_->trainer.steps; }

std::vector<std::string> RunFile::input_paths() const {
  std::vector<std::string> paths = {impl_->trainer.model, impl_->trainer.data.train};
  if (impl_->server.model != impl_->trainer.model) paths.push_back(impl_->server.model);
  if (!impl_->trainer.data.eval.empty()) paths.push_back(impl_->trainer.data.eval);
  if (!impl_->trainer.probe.file.empty()) paths.push_back(impl_->trainer.probe.file);
  for (const rpc::TlsOptions* const tls : {&impl_->server.tls, &impl_->trainer.tls}) {
    for (const char* const file : {"tls.crt", "tls.key", "ca.crt"}) {
      if (!tls->directory.empty()) paths.push_back(absl::StrCat(tls->directory, "/", file));
    }
    if (!tls->token_file.empty()) paths.push_back(tls->token_file);
  }
  return paths;
}

void RunFile::UseThreads(int64_t rank_threads, int64_t server_threads) {
  int64_t& rank = impl_->trainer.learner.num_threads;
  int64_t& server = impl_->server.engine.num_threads;
  if (rank == 0) rank = rank_threads;
  if (server == 0) server = server_threads;
}

std::vector<std::string> RunFile::Changes() const {
  const RunFile defaults(std::make_unique<Impl>());
  return impl_->binder.ChangesFrom(defaults.impl_->binder);
}

std::string RunFile::ToYaml() const { return impl_->binder.ToYaml(); }

std::string RunFile::Reference() {
  const RunFile defaults(std::make_unique<Impl>());
  return absl::StrCat(
      "# Configuration\n\n"
      "For whoever writes a run file: one YAML file with the sections below describes a run.\n"
      "You need a model directory and prompts; `examples/demo.yaml` is a small one. First\n"
      "command: `tandem run examples/demo.yaml --dry-run` prints the resolved configuration,\n"
      "what of it differs from the defaults, and what is missing.\n\n"
      "`--set NAME=VALUE` overrides the file. An unknown name, a wrong type and a value out\n"
      "of range are errors that name file, line and the nearest valid name. `tandem run\n"
      "--help-config` writes this page.\n\n",
      defaults.impl_->binder.Markdown());
}

}  // namespace tandem::cli
