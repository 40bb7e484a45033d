// The part of an sbatch script that is the same for every run, slurm_script_body.sh;
// slurm_script.cc writes the settings it reads before it.
#ifndef TANDEM_CLI_CLUSTER_SLURM_SCRIPT_BODY_H_
#define TANDEM_CLI_CLUSTER_SLURM_SCRIPT_BODY_H_

namespace tandem::cli {

extern const char* const kSlurmScriptBody;

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CLUSTER_SLURM_SCRIPT_BODY_H_
