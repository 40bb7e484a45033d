// tandem render: a run file in the form that a cluster's scheduler takes, with one child command
// per scheduler: k8s and slurm.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/cluster/render_kubernetes.h"
#include "cli/cluster/slurm_script.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/run_file/run_file.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct RenderFlags {
  std::string config;
  std::vector<std::string> sets;
  std::string out;
};

absl::Status WriteKubernetes(const RenderFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto plain, RunFile::Load(flags.config, flags.sets));
  std::vector<std::string> sets = flags.sets;
  sets.push_back(absl::StrCat("server.drain_seconds=", GraceOf(*plain).drain));
  TANDEM_ASSIGN_OR_RETURN(const auto file, RunFile::Load(flags.config, sets));
  TANDEM_ASSIGN_OR_RETURN(const auto files, RenderKubernetes(*file));
  TANDEM_ASSIGN_OR_RETURN(const std::string name, KubernetesName(*file));
  const std::string out = flags.out.empty() ? name + "-k8s" : flags.out;
  std::error_code ignored;
  if (fs::exists(out, ignored) && !fs::exists(out + "/kustomization.yaml", ignored) &&
      !fs::is_empty(out, ignored)) {
    return AlreadyExists(out, " holds other things: name another folder with --out");
  }
  for (const auto& [path, contents] : files) {
    const fs::path target = fs::path(out) / path;
    TANDEM_RETURN_IF_ERROR(MakeDirectories(target.parent_path().string()));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(target.string(), contents));
  }
  if (!file->launch().kubernetes.mutual_tls) {
    std::fprintf(
        stderr, "tandem render: warning: gRPC is plaintext inside the cluster; %s\n",
        "launch.kubernetes.mutual_tls=true with certificates is safe (docs/kubernetes.md)");
  }
  std::printf(
      "%s: written. Next:\n  kubectl apply -k %s\n  kubectl get pods -l "
      "app.kubernetes.io/instance=%s\n",
      out.c_str(), out.c_str(), name.c_str());
  return absl::OkStatus();
}

// Programs are in the directory of this one, unless the run file names another or they run in a
// container, where they are in PATH.
std::string ProgramPath(const LaunchOptions& launch, const std::string& name) {
  if (!launch.binaries.empty()) return absl::StrCat(launch.binaries, "/", name);
  if (!launch.slurm.container_image.empty()) return name;
  return absl::StrCat(ProgramDirectory(), "/", name);
}

void Warn(const RunFile& file, const SlurmLayout& layout) {
  if (layout.num_nodes > 1 && file.server().insecure_plaintext_open_to_the_network) {
    std::fprintf(stderr,
                 "tandem render: warning: servers on %lld nodes speak plaintext to whoever reaches "
                 "them, as the run file allows\n",
                 static_cast<long long>(layout.num_nodes));
  }
  if (layout.rank_nodes > 1) {
    std::fprintf(stderr,
                 "tandem render: warning: trainer ranks on several nodes trust whoever reaches "
                 "their ports (docs/scaling.md)\n");
  }
}

absl::StatusOr<std::string> Render(const RenderFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(auto file, RunFile::Load(flags.config, flags.sets));
  SlurmJob job;
  TANDEM_ASSIGN_OR_RETURN(
      job.layout, PlanSlurmLayout(file->launch(), file->server().engine.device == Device::kCuda,
                                  file->trainer().learner.device == Device::kCuda));
  if (job.layout.num_nodes > 1) {
    // Loads the file again with the address that the script passes to servers, so that the server's
    // rules about plaintext are checked.
    std::vector<std::string> sets = flags.sets;
    sets.push_back("server.listen=0.0.0.0:0");
    TANDEM_ASSIGN_OR_RETURN(file, RunFile::Load(flags.config, sets));
  }
  job.launch = file->launch();
  file->UseThreads(job.launch.slurm.cpus_per_rank, job.launch.slurm.cpus_per_server);
  job.directory = fs::current_path().string();
  job.run_directory = file->run_directory();
  job.run_name = fs::path(job.run_directory).filename().string();
  job.run_file = file->ToYaml();
  job.observe_listen = file->server().observe_listen;
  job.server_program = ProgramPath(job.launch, "rollout_server");
  job.trainer_program = ProgramPath(job.launch, "trainer");
  job.inputs = file->input_paths();
  Warn(*file, job.layout);
  return SlurmScript(job);
}

absl::Status WriteScript(const std::string& path, const std::string& script) {
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, script));
  std::error_code ignored;
  fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add, ignored);
  return absl::OkStatus();
}

int RenderSlurm(const RenderFlags& flags) {
  const absl::StatusOr<std::string> script = Render(flags);
  absl::Status status = script.status();
  if (script.ok() && !flags.out.empty()) {
    status = trainer::WithExitCode(WriteScript(flags.out, *script), ExitCode::kStorage);
  }
  if (!status.ok()) return FailUsage(status);
  if (flags.out.empty()) {
    std::fputs(script->c_str(), stdout);
  } else {
    std::fprintf(stderr, "%s: submit it with sbatch\n", flags.out.c_str());
  }
  return ToInt(ExitCode::kOk);
}

// A child of `render` with the flags that both have in common.
CLI::App* AddScheduler(CLI::App* render, const char* name, const char* description,
                       const char* config, const char* out, RenderFlags& flags) {
  CLI::App* sub = render->add_subcommand(name, description);
  AddConfigArgument(sub, flags.config, config);
  AddRunSetFlag(sub, flags.sets);
  sub->add_option("--out", flags.out, out);
  return sub;
}

}  // namespace

void AddRenderCommand(CLI::App& app, Action& chosen) {
  CLI::App* render =
      app.add_subcommand("render", "A run file in the form that a cluster's scheduler takes");
  render->require_subcommand(0, 1);
  EndHelp(*render, "", "tandem render slurm examples/demo.yaml --out demo.sbatch");

  auto flags = std::make_shared<RenderFlags>();
  CLI::App* k8s = AddScheduler(render, "k8s", "A folder for `kubectl apply -k`", "run file",
                               "folder to write; default: NAME-k8s", *flags);
  EndHelp(*k8s, "Options: section launch.kubernetes of the run file (docs/configuration.md).",
          "tandem render k8s examples/demo.yaml --out demo-k8s");
  SetAction(*k8s, chosen, [flags] { return FinishUsage(WriteKubernetes(*flags)); });

  CLI::App* slurm = AddScheduler(render, "slurm", "One sbatch script that runs servers and trainer",
                                 "run file; section launch.slurm says what to ask for",
                                 "write the script here; default: print it", *flags);
  EndHelp(*slurm,
          "The script contains the resolved configuration. Relative paths start in the current "
          "folder.",
          "tandem render slurm examples/demo.yaml --out demo.sbatch");
  SetAction(*slurm, chosen, [flags] { return RenderSlurm(*flags); });
}

}  // namespace tandem::cli
