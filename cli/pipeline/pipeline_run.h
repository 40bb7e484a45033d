// RunPipeline: carries out a pipeline (pipeline_file.h): its stages one after the other, each as a
// child process of this program. `tandem run` uses it.
//
//   OUT/NAME/pipeline.json     what each stage is, was made of and made (stage_record.h)
//   OUT/NAME/stages/N_name     log.txt, the output `model` or `data.jsonl`; of rl also `run`, the
//                              run directory, and run.yaml
//
// pipeline.json is written before a stage begins and after it has ended. A stage is done when its
// outputs are whole, which they become by a rename or by their last file. So a kill at any moment
// loses no stage that was done, and at most the work since the last checkpoint of the one that ran.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/exit_codes.h"

namespace tandem::cli {

struct PipelineOptions {
  std::string file;
  std::vector<std::string> sets;  // STAGE.KEY=VALUE
  std::string from;               // do this stage and all later ones again; empty: none
  bool clean = false;             // all of them
  bool dry_run = false;           // print the plan and start nothing
};

// Goes on where an earlier call of the same pipeline ended. Returns the exit code of the stage that
// failed or was stopped, else 0. Errors occur before a stage is started, and carry their exit code:
//   kUsage           the file, an option, a name; a stage that is done has changed; another process
//                    runs the pipeline
//   kBadModelOrData  a file or directory that a stage reads is missing; pipeline.json is damaged
//   kStorage         a file cannot be written
absl::StatusOr<ExitCode> RunPipeline(const PipelineOptions& options);

}  // namespace tandem::cli
