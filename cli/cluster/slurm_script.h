// SlurmScript: one sbatch script for a run, with servers and ranks as steps of one allocation. The
// script also decides what happens when one of them fails or the time limit is near
// (docs/slurm.md). Pure. `tandem render slurm` uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run_file/launch_options.h"

namespace tandem::cli {

// The nodes of the allocation: ranks are on the first nodes and servers on the last ones.
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

//   INVALID_ARGUMENT  ranks do not fill their nodes, or there are more server nodes than servers
absl::StatusOr<SlurmLayout> PlanSlurmLayout(const LaunchOptions& launch, bool server_on_gpu,
                                            bool trainer_on_gpu);

struct SlurmJob {
  LaunchOptions launch;
  SlurmLayout layout;
  std::string run_name;
  std::string directory;       // absolute; relative paths of the run file start here
  std::string run_directory;   // OUT/NAME
  std::string run_file;        // resolved, as YAML
  std::string observe_listen;  // of server 0; server i has port + i; empty: none
  std::string server_program;  // a path, or a name that is in PATH
  std::string trainer_program;
  std::vector<std::string> inputs;  // paths that must be readable on every node
};

// Any text is safe in the script's own lines, because it is quoted. Versions of Slurm quote #SBATCH
// lines differently, so unusual characters are refused there.
//   INVALID_ARGUMENT  a value of launch.slurm has such a character (named), a line of
//                     launch.slurm.sbatch is not an option, or a line contains a line end
absl::StatusOr<std::string> SlurmScript(const SlurmJob& job);

// How many seconds before the time limit the job is told to end, so that it saves and is queued
// again.
int64_t SignalSeconds(const LaunchOptions& launch);

// `text` as one word of a shell command.
std::string ShellQuote(const std::string& text);

// slurm_script_body.sh: the part of the script that is the same for every run. It reads the
// settings that SlurmScript writes before it.
extern const char* const kSlurmScriptBody;

}  // namespace tandem::cli
