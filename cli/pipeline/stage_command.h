// StageCommand: the command of `tandem` that a stage of a pipeline is. Used by pipeline_run.h.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/pipeline/pipeline_file.h"

namespace tandem::cli {

struct StageCommand {
  std::vector<std::string> arguments;          // after the program's name, of a start
  std::map<std::string, std::string> options;  // resolved, for StageIdentity
  std::vector<std::string> inputs;             // files and directories that it reads
  std::string run_file;  // of rl: the contents of DIRECTORY/run.yaml, which `arguments` names
};

// The command of stage `index`, checked as the command line and the run file check it, so that a
// mistake is known before the first stage runs. Reads no model and no data.
//   INVALID_ARGUMENT  FILE:LINE: an option that the command has not (with the nearest), a bad value,
//                     one that the pipeline sets itself (out, resume), or one that is missing
absl::StatusOr<StageCommand> ResolveStage(const PipelineFile& pipeline, size_t index);

}  // namespace tandem::cli
