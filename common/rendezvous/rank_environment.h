// RankEnvironment: which of how many ranks this process is and where they meet, as the launcher
// says in environment variables. Pure: a function of the variables alone.
//
//   torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
//              TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID; the same names by hand, by Volcano
//              `tandem run` and `tandem ranks`
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
// The first of these that is there is used. MASTER_ADDR and MASTER_PORT go before what a launcher
// implies.
#ifndef TANDEM_COMMON_RENDEZVOUS_RANK_ENVIRONMENT_H_
#define TANDEM_COMMON_RENDEZVOUS_RANK_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::comm {

inline constexpr int kDefaultMasterPort = 29500;  // torchrun's

struct RankEnvironment {
  std::string source = "none";  // "torchrun", "Kubeflow", "Slurm", "JobSet", "LWS", "Open MPI"
  int rank = 0;
  int world_size = 1;
  // Among the ranks of this host: which device is its own.
  int local_rank = 0;
  int local_world_size = 1;               // they share the cores
  std::string master_host = "127.0.0.1";  // where rank 0 listens
  int master_port = kDefaultMasterPort;
  // Of one launch of one job: two launches differ in it, all ranks of one agree on it.
  std::string launch_id = "none";
  int restart = 0;  // how often the launcher started this job again
};

using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

// Of this process.
EnvironmentVariables ProcessEnvironment();

//   INVALID_ARGUMENT  a variable that is missing beside those of its launcher, is not a number, is
//                     out of range, or contradicts another launcher's; the message names it
absl::StatusOr<RankEnvironment> ReadRankEnvironment(const EnvironmentVariables& variables);

// The first host of a Slurm node list: "gpu[03-05,9],login1" -> "gpu03".
//   INVALID_ARGUMENT  brackets that do not close
absl::StatusOr<std::string> FirstSlurmHost(const std::string& node_list);

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_RENDEZVOUS_RANK_ENVIRONMENT_H_
