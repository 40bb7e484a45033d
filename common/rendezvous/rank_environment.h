// RankEnvironment: this process's rank, the number of ranks and the address where they meet, from
// the environment variables that a launcher sets. Pure: the result is a function of the variables
// alone.
//
//   torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
//              TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID; the same names are set by
//              Volcano, `tandem run`, `tandem ranks` and users who set variables by hand
//   Kubeflow   PET_NODE_RANK PET_NNODES PET_NPROC_PER_NODE (1) PET_MASTER_ADDR PET_MASTER_PORT
//   Slurm      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE, inside a step
//              (srun); the first host of SLURM_STEP_NODELIST; a port from SLURM_JOB_ID;
//              SLURM_RESTART_COUNT
//   JobSet     JOB_COMPLETION_INDEX WORLD_SIZE MASTER_ADDR or JOBSET_COORDINATOR;
//              JOBSET_RESTART_ATTEMPT
//   LWS        LWS_WORKER_INDEX LWS_GROUP_SIZE LWS_LEADER_ADDRESS
//   Open MPI   OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK
//              OMPI_COMM_WORLD_LOCAL_SIZE
//
// The first launcher in this list whose variables are set is used. MASTER_ADDR and MASTER_PORT take
// precedence over the address that a launcher implies.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::comm {

inline constexpr int kDefaultMasterPort = 29500;  // the default of torchrun

struct RankEnvironment {
  std::string source = "none";  // "torchrun", "Kubeflow", "Slurm", "JobSet", "LWS", "Open MPI"
  int rank = 0;
  int world_size = 1;
  // Rank among those of this host; it chooses the device.
  int local_rank = 0;
  int local_world_size = 1;               // ranks on this host, which share its cores
  std::string master_host = "127.0.0.1";  // where rank 0 listens
  int master_port = kDefaultMasterPort;
  // Identifies one launch of one job: it differs between launches and is the same for all ranks of
  // a launch.
  std::string launch_id = "none";
  int restart = 0;  // how often the launcher has restarted this job
};

using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

// The environment of this process.
EnvironmentVariables ProcessEnvironment();

//   INVALID_ARGUMENT  a variable (named in the message) is missing beside others of its launcher,
//                     is not a number, is out of range, or contradicts another launcher's
absl::StatusOr<RankEnvironment> ReadRankEnvironment(const EnvironmentVariables& variables);

// The first host of a Slurm node list: "gpu[03-05,9],login1" -> "gpu03".
//   INVALID_ARGUMENT  brackets that do not close
absl::StatusOr<std::string> FirstSlurmHost(const std::string& node_list);

}  // namespace tandem::comm
