// The part of an sbatch script that is the same for every run, slurm_script_body.sh;
// slurm_script.cc writes the settings it reads before it.
#pragma once

namespace tandem::cli {

extern const char* const kSlurmScriptBody;

}  // namespace tandem::cli
