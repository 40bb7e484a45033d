// NodeRanks: the trainer ranks of one host: which of how many hosts this is, as the host's own
// launcher says (one process per host: a pod, a Slurm task per node), and what each rank is told.
// Pure. `tandem ranks` and the launcher of `tandem run` use it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous/rank_environment.h"

namespace tandem::cli {

struct NodeRanks {
  std::string source = "none";  // who said which node this is: common/rendezvous/rank_environment.h
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

// Explicit words, before what the environment says. 0, -1 and empty: not given.
struct NodeFlags {
  int per_node = 1;
  int nodes = 0;
  int node_rank = -1;
  std::string master;  // HOST or HOST:PORT
};

// For a process that is alone on its host. RANK and WORLD_SIZE (Volcano) number hosts here, as
// PET_NODE_RANK, a task of a Slurm step, JOB_COMPLETION_INDEX and LWS_WORKER_INDEX do. The number
// of pods beside JOB_COMPLETION_INDEX is WORLD_SIZE or `nodes`.
//   INVALID_ARGUMENT  what ReadRankEnvironment says; several processes of this launch on one host;
//                     `nodes` without a way to know which of them this is; words that contradict
//                     each other; several hosts and no word where rank 0 is
absl::StatusOr<NodeRanks> ReadNodeRanks(comm::EnvironmentVariables variables,
                                        const NodeFlags& flags);

// "NAME=VALUE" for one rank of the node: torchrun's contract. master_port must be set.
std::vector<std::string> RankVariables(const NodeRanks& node, int local_rank);

// A port of the loopback interface that was free a moment ago, of those that the kernel gives to no
// connection by itself.
int FreePort();

}  // namespace tandem::cli
