// tandem render slurm: one sbatch script from a run file.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/cluster/slurm_script.h"
#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/run_file/run_file.h"
#include "cli/run_file/run_file_flags.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct SlurmFlags {
  std::string config;
  std::vector<std::string> sets;
  std::string out;
};

// The programs beside this one, unless a container or the file says where they are.
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

absl::StatusOr<std::string> Render(const SlurmFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(auto file, RunFile::Load(flags.config, flags.sets));
  SlurmJob job;
  TANDEM_ASSIGN_OR_RETURN(
      job.layout, PlanSlurmLayout(file->launch(), file->server().engine.device == Device::kCuda,
                                  file->trainer().learner.device == Device::kCuda));
  if (job.layout.num_nodes > 1) {
    // As the script starts them: the server's own rules say whether it may.
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

int RenderSlurm(const SlurmFlags& flags) {
  const absl::StatusOr<std::string> script = Render(flags);
  absl::Status status = script.status();
  if (script.ok() && !flags.out.empty()) {
    status = trainer::WithExitCode(WriteScript(flags.out, *script), ExitCode::kStorage);
  }
  if (!status.ok()) {
    PrintFailure(status);
    return ToInt(trainer::ExitCodeOf(status));
  }
  if (flags.out.empty()) {
    std::fputs(script->c_str(), stdout);
  } else {
    std::fprintf(stderr, "%s: submit it with sbatch\n", flags.out.c_str());
  }
  return ToInt(ExitCode::kOk);
}

}  // namespace

void AddRenderSlurmCommand(CLI::App& render, Action& chosen) {
  auto flags = std::make_shared<SlurmFlags>();
  CLI::App* sub = render.add_subcommand("slurm", "One sbatch script that runs servers and trainer");
  AddConfigArgument(sub, flags->config, "run file; section launch.slurm says what to ask for");
  AddRunSetFlag(sub, flags->sets);
  sub->add_option("--out", flags->out, "write the script here; default: print it");
  EndHelp(
      *sub,
      "The resolved configuration is in the script. Relative paths are seen from the folder this "
      "runs in.",
      "tandem render slurm examples/demo.yaml --out demo.sbatch");
  sub->callback([flags, &chosen] { chosen = [flags] { return RenderSlurm(*flags); }; });
}

}  // namespace tandem::cli
