// NodeRanks: the trainer ranks of one host. A cluster's launcher starts one process per host (a
// pod, a Slurm task per node) and sets variables with the number of this host; from them follow the
// numbers and the variables of the ranks. `tandem ranks` and the launcher of `tandem run` use it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous/rank_environment.h"

namespace tandem::cli {

struct NodeRanks {
  std::string source = "none";  // where the node's number came from (rank_environment.h)
  int node = 0;
  int num_nodes = 1;
  int per_node = 1;
  std::string master_host = "127.0.0.1";
  int master_port = 0;  // 0: any free port of this host; on one node only
  std::string launch_id = "none";
  int restart = 0;

  int rank(int local_rank) const { return node * per_node + local_rank; }
  int world_size() const { return num_nodes * per_node; }
};

// Flags, which override the environment. 0, -1 and empty mean that a flag was not given.
struct NodeFlags {
  int per_node = 1;
  int nodes = 0;
  int node_rank = -1;
  std::string master;  // HOST or HOST:PORT
};

// Reads the variables of a process that is alone on its host. Here, RANK and WORLD_SIZE (Volcano)
// count hosts, as PET_NODE_RANK, a task of a Slurm step, JOB_COMPLETION_INDEX and LWS_WORKER_INDEX
// do. With JOB_COMPLETION_INDEX, the number of pods is WORLD_SIZE or `nodes`. Pure.
//   INVALID_ARGUMENT  as ReadRankEnvironment; the launch has several processes on one host; `nodes`
//                     is given and nothing says which of them this is; flags and variables
//                     contradict each other; there are several hosts and no address of rank 0
absl::StatusOr<NodeRanks> ReadNodeRanks(comm::EnvironmentVariables variables,
                                        const NodeFlags& flags);

// The variables "NAME=VALUE" of torchrun for one rank of the node. master_port must be set. Pure.
std::vector<std::string> RankVariables(const NodeRanks& node, int local_rank);

// A port of the loopback interface that was free a moment ago and is outside the range from which
// the kernel picks ports for connections.
int FreePort();

}  // namespace tandem::cli
