// SlurmOptions: what `tandem render slurm` asks Slurm for; section `launch.slurm` of a run file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/options/options.h"

namespace tandem::cli {

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
void BindOptions(OptionBinder& binder, SlurmOptions& options);

}  // namespace tandem::cli
