// LaunchOptions: how many processes a run has and where they run; section `launch` of a run file.
// `tandem run` starts them on this machine, and `tandem render` describes them for a cluster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"

namespace tandem::cli {

enum class KubernetesOverlay { kJobSet, kElastic, kPlain };

// Section `launch.kubernetes`. The help texts in launch_options.cc describe every option.
struct KubernetesOptions {
  std::string name;  // of the run's objects; empty: the run's
  KubernetesOverlay overlay = KubernetesOverlay::kJobSet;
  std::string image;  // empty: tandem:VERSION-cpu or -cuda, as `make image` tags them
  std::string claim = "tandem-workspace";
  std::string queue;  // of Kueue; empty: none
  bool mutual_tls = false;
  bool network_policy = true;
  bool pod_monitor = false;
  bool rdma = false;
  double server_cpus = 4, trainer_cpus = 4;
  double server_memory_gib = 8, trainer_memory_gib = 16;
  double shm_gib = 1;
  int64_t max_servers = 8;  // of the elastic overlay
  int64_t max_restarts = 3;
  double token_seconds = 0.05;
  double step_seconds = 120;
  double checkpoint_seconds = 60;
};

// Section `launch.slurm`: what `tandem render slurm` asks Slurm for.
struct SlurmOptions {
  std::string partition;
  std::string account;
  std::string qos;
  std::string time;
  std::string gpu_type;
  std::string memory;
  int64_t server_nodes = 0;
  int64_t cpus_per_rank = 8;
  int64_t cpus_per_server = 8;
  bool exclusive = false;
  int64_t max_restarts = 3;
  std::vector<std::string> sbatch;
  std::vector<std::string> setup;
  std::string container_image;
  std::string container_mounts;
};

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

// The directory of the running program, where the other programs are.
std::string ProgramDirectory();

}  // namespace tandem::cli
