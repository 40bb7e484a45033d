// TrainSupervised: the loop of supervised training: epochs, batches, evaluations, checkpoints and
// metrics.jsonl. Used by `tandem sft`, `train-preferences` and `train-reward-model`.
//
// A batch is a function of (seed, update) alone, and a checkpoint holds masters, moments and the
// count of updates. So a resumed run makes the updates that the interrupted one would have made,
// bit for bit. Every rank runs the loop; rank 0 alone writes.
//
//   OUT/config.yaml              the settings, which a resumed run must have too
//   OUT/metrics.jsonl            a line for each update (docs/preferences.md)
//   OUT/checkpoints/step_N       as those of a run (trainer/checkpoints/checkpoint.h)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/supervised/supervised_model.h"
#include "trainer/supervised/supervised_objective.h"
#include "trainer/supervised/supervised_options.h"

namespace tandem::trainer {

struct SupervisedProgress {
  int64_t done = 0, total = 0;  // updates
  int64_t done_here = 0;        // by this process
  double seconds = 0;           // since this process began to train
  int64_t num_tokens = 0;       // of the examples since then
  SupervisedReport report;      // of the last update
};

struct SupervisedRunSetup {
  std::string out;
  std::string model_directory;  // whose config and tokenizer files a checkpoint carries along
  std::string settings;         // YAML, an option a line
  std::string data_digest;      // of the examples
  CheckpointIdentity identity;
  bool resume = false;
  // Borrowed:
  SupervisedModel* model = nullptr;
  SupervisedObjective* objective = nullptr;
  SupervisedObjective* held_out = nullptr;  // null: none

  std::function<bool()> stop_requested;                        // null: never
  std::function<void(const SupervisedProgress&)> on_progress;  // null: not wanted
};

struct SupervisedOutcome {
  int64_t num_updates = 0, total = 0;
  bool stopped = false;  // before the end, with a checkpoint
  SupervisedReport last;
  std::optional<SupervisedReport> held_out;  // at the end
};

// Whether a run may be begun, or resumed, in `out`. To be asked before the model is loaded.
//   ALREADY_EXISTS  checkpoints of a run are there, and `resume` is not set
//   NOT_FOUND       none is there to resume
absl::Status CheckRunDirectory(const std::string& out, bool resume);

// OK if both have the same lines, except those of options that change no number (how often to
// evaluate and to save, sharding). Pure.
//   INVALID_ARGUMENT  names the first line that differs, with both values
absl::Status CheckSameSettings(const std::string& was, const std::string& now);

//   INVALID_ARGUMENT     other settings or data than the run that is to be resumed
//   DATA_LOSS, FAILED_PRECONDITION  of LoadLatestCheckpoint (kBadModelOrData)
//   INTERNAL             an update has no finite loss or gradient (kTooManySkipped), or a kernel
//                        failed
//   RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNAVAILABLE  a file could not be written (kStorage)
//   UNAVAILABLE          another rank is lost (kRankLost)
absl::StatusOr<SupervisedOutcome> TrainSupervised(const SupervisedOptions& options,
                                                  const SupervisedRunSetup& setup);

}  // namespace tandem::trainer
