// The part of an sbatch script that is the same for every run, slurm_script_body.sh;
// slurm_script.cc writes the settings it reads before it.
#ifndef TANDEM_DEPLOY_TANDEM_SLURM_SCRIPT_BODY_H_
#define TANDEM_DEPLOY_TANDEM_SLURM_SCRIPT_BODY_H_

namespace tandem::front {

extern const char* const kSlurmScriptBody;

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_SLURM_SCRIPT_BODY_H_
