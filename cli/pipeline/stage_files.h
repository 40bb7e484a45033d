// What lies in the directory of a stage, and digests of what it reads and makes. Used by
// pipeline_run.h. Free of LibTorch.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/pipeline/pipeline_file.h"
#include "cli/pipeline/stage_record.h"

namespace tandem::cli {

// The digest of a file is that of its bytes. The digest of a model directory is that of its
// config.json and of the files of its tokenizer and weights, by name. A directory of another form,
// such as a run, has the empty digest.
//   NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE  it cannot be read
absl::StatusOr<std::string> DigestOfPath(const std::string& path);

// Whether each output is there and complete, and whether there is a checkpoint to go on from.
StageEvidence FindEvidence(const PipelineFile& pipeline, size_t index);

// Waits until no other process writes to the directory: the command of a stage outlives a pipeline
// that was killed by the time that it takes to save.
//   ALREADY_EXISTS  it is still written to after a minute
absl::Status WaitUntilFree(const PipelineFile& pipeline, size_t index);

}  // namespace tandem::cli
