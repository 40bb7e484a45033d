// Checkpoints of a run: step_N directories that are there whole or not at all. Used by
// Checkpointer.
//
// A checkpoint holds model.safetensors (fp32 masters), optimizer.safetensors (moments), state.json
// (step, trained frontier, run id, prompt order, identity) and copies of the config and tokenizer
// files, so that it is a Hugging Face directory too. In a run that trains adapters,
// adapter_model.safetensors and adapter_config.json stand in place of model.safetensors, as PEFT
// writes them. The files are written in this order to a temporary directory, each synced, and after
// them manifest.json with the size and digest of each. Then the directory is renamed, and LATEST is
// written. A crash at any point leaves the checkpoints that were there, because a directory without
// a fitting manifest is not taken for one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/ranks/learner.h"
#include "trainer/run/run_state.h"

namespace tandem::trainer {

// What must be unchanged for a run to go on.
struct CheckpointIdentity {
  std::string model_config_digest;  // of config.json
  std::string tokenizer_hash;
  // CombinedDigest of the tensors of trainer.model, which are the reference policy and what
  // distances are measured from; empty: unknown, as in checkpoints from before it was written.
  std::string start_digest;
};

// What decides which prompts the groups of a step belong to. It must be unchanged too.
struct PromptOrder {
  uint64_t seed = 0;
  int64_t prompts_per_step = 0;
  std::string prompts_digest;  // PromptSource::digest
};

// OK when `now` equals `was`; else an error that says what to do.
//   INVALID_ARGUMENT  names the option and both values
absl::Status CheckSameOrder(const PromptOrder& was, const PromptOrder& now);

struct Checkpoint {
  int64_t step = 0;                         // weight version
  Frontier frontier;                        // what was trained on or given up
  std::map<int64_t, PlannedGroup> planned;  // RunState
  std::vector<PromptCounts> prompt_counts;  // RunState
  int64_t unrecorded_skips = 0;             // RunState
  std::vector<DroppedGroup> unrecorded_drops;
  std::string run_id;
  PromptOrder order;
  CheckpointIdentity identity;
  LearnerState learner;
};

// Writes DIRECTORY/step_N and LATEST, then removes all but the newest `keep`. A checkpoint of this
// step that is there already is replaced. `model_directory` gives config and tokenizer files.
//   RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNAVAILABLE  it could not be written; those there before
//   stand
absl::Status SaveCheckpoint(const std::string& directory, const Checkpoint& checkpoint,
                            const std::string& model_directory, int64_t keep);

// Reads and verifies DIRECTORY/step_N.
//   DATA_LOSS            a file is missing, short or has another digest (named)
//   FAILED_PRECONDITION  made from another model, other weights of trainer.model or another
//                        tokenizer (the difference is named)
absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& path,
                                          const CheckpointIdentity& identity);

struct LoadedCheckpoint {
  Checkpoint checkpoint;
  std::vector<std::string> refused;  // newer ones that were damaged, with why
};

// Loads the newest checkpoint that is whole, whatever LATEST says. Where a crash interrupted the
// replacement of a checkpoint, the one before gets its name back first. So only the run that owns
// `directory` may call this.
//   NOT_FOUND  none is there
//   DATA_LOSS  all are damaged (each named)
//   FAILED_PRECONDITION as above
absl::StatusOr<LoadedCheckpoint> LoadLatestCheckpoint(const std::string& directory,
                                                      const CheckpointIdentity& identity);

}  // namespace tandem::trainer
