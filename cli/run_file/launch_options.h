// LaunchOptions: how many processes a run has and where; section `launch` of a run file. `tandem
// run` starts them on this machine, `tandem render` writes them down for a cluster.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/run_file/kubernetes_options.h"
#include "cli/run_file/slurm_options.h"
#include "common/options/options.h"

namespace tandem::cli {

struct LaunchOptions {
  int64_t num_servers = 1;
  int64_t num_ranks = 1;
  int64_t ranks_per_node = 0;  // 0: all on one node
  int64_t gpus_per_server = 0;
  int64_t base_port = 0;
  std::string binaries;
  double ready_seconds = 300;
  double stop_seconds = 120;
  int64_t max_restarts = 3;
  double restart_delay_seconds = 1;
  KubernetesOptions kubernetes;
  SlurmOptions slurm;

  int64_t ranks_on_each_node() const { return ranks_per_node == 0 ? num_ranks : ranks_per_node; }
};
void BindOptions(OptionBinder& binder, LaunchOptions& options);

// How many nodes the ranks take on a cluster.
//   INVALID_ARGUMENT  num_ranks is not a multiple of ranks_per_node
absl::StatusOr<int64_t> NumRankNodes(const LaunchOptions& options);

// The directory of the running program, where its siblings are.
std::string ProgramDirectory();

}  // namespace tandem::cli
