// StageRecord: what a pipeline remembers of a stage in OUT/NAME/pipeline.json, and what is to be
// done about the stage when the pipeline is started again. Used by pipeline_run.h. Pure; free of
// LibTorch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::cli {

// What decides the result of a stage: its resolved options, and the digests of the files and
// directories that it reads.
struct StageIdentity {
  std::string kind;
  std::map<std::string, std::string> options;  // name -> value
  std::map<std::string, std::string> inputs;   // path -> digest

  std::string Digest() const;  // 32 hex digits
};

// A stage that is `kRunning` while no pipeline runs was stopped or killed.
enum class StageState { kPending, kRunning, kFailed, kDone };
std::string StateName(StageState state);  // "pending", "running", "failed", "done"

struct StageRecord {
  std::string name;
  StageState state = StageState::kPending;
  StageIdentity identity;  // of the last start; empty while pending
  std::string directory;   // OUT/NAME/stages/N_name
  double started = 0,
         ended = 0;   // seconds since the epoch: of the first start, of the end; 0: not yet
  int exit_code = 0;  // of a stage that failed
  std::map<std::string, std::string> outputs;         // output -> path, of a stage that is done
  std::map<std::string, std::string> output_digests;  // path -> digest
};

// The contents of pipeline.json. `file` is the pipeline's file, for readers.
std::string ToJson(const std::string& name, const std::string& file,
                   const std::vector<StageRecord>& records);
//   DATA_LOSS  `text` is not what ToJson writes (names `path`)
absl::StatusOr<std::vector<StageRecord>> ParseStageRecords(const std::string& text,
                                                           const std::string& path);

enum class StageAction {
  kSkip,    // it is done
  kFinish,  // its command had ended and this was not written down: take its outputs
  kResume,  // from what its command saved
  kStart,   // from the beginning, in an empty directory
};

// What lies in the directory of a stage that is not done.
struct StageEvidence {
  bool outputs_are_whole = false;
  bool can_resume = false;  // there is a checkpoint
};

//   INVALID_ARGUMENT  the stage is done, or holds work that could be resumed, and an option or an
//                     input is not what it was (named, with both values)
absl::StatusOr<StageAction> NextAction(const StageRecord& record, const StageIdentity& now,
                                       const StageEvidence& evidence);

// Checks that the stages that were started are still the first ones, in their order.
//   INVALID_ARGUMENT  names the first that is not
absl::Status CheckSameOrder(const std::vector<StageRecord>& records,
                            const std::vector<std::string>& names);

}  // namespace tandem::cli
