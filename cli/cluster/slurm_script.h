// SlurmScript: one sbatch script of a run: servers and ranks as steps of one allocation, and what
// happens when one of them fails or the time is up (docs/slurm.md). Pure. `tandem render slurm`
// uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run_file/launch_options.h"

namespace tandem::cli {

// Who is on which node of the allocation: ranks on the first ones, servers on the last ones.
struct SlurmLayout {
  int64_t num_nodes = 1;
  int64_t rank_nodes = 1;
  int64_t ranks_per_node = 1;
  int64_t gpus_per_rank = 0;
  int64_t first_server_node = 0;
  int64_t servers_per_node = 1;
  int64_t gpus_per_server = 0;
  // What every node of the allocation must have.
  int64_t gpus_per_node = 0;
  int64_t cpus_per_node = 1;
};

//   INVALID_ARGUMENT  ranks that do not fill their nodes; more server nodes than servers
absl::StatusOr<SlurmLayout> PlanSlurmLayout(const LaunchOptions& launch, bool server_on_gpu,
                                            bool trainer_on_gpu);

struct SlurmJob {
  LaunchOptions launch;
  SlurmLayout layout;
  std::string run_name;
  std::string directory;       // absolute: relative paths of the run file are seen from it
  std::string run_directory;   // OUT/NAME
  std::string run_file;        // resolved, as YAML
  std::string observe_listen;  // of server 0; server i has the port + i. Empty: none
  std::string server_program;  // a path, or a name that is in PATH
  std::string trainer_program;
  std::vector<std::string> inputs;  // paths that must be readable on every node
};

// Any text is safe in the script's own lines; what stands in #SBATCH lines is not quoted by Slurm
// alike everywhere, so odd characters are refused there.
//   INVALID_ARGUMENT  a value of launch.slurm with such a character (named); a line of
//                     launch.slurm.sbatch that is no option; a line end inside a line
absl::StatusOr<std::string> SlurmScript(const SlurmJob& job);

// How many seconds before the time limit the job is told, so that it saves and is queued again.
int64_t SignalSeconds(const LaunchOptions& launch);

// One word of a shell command that stands for `text`.
std::string ShellQuote(const std::string& text);

}  // namespace tandem::cli
