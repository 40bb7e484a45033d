// Checkpointer: when a run saves its state, and what a resumed run takes back. The files are those
// of checkpoint.h. Used by trainer.cc, from its thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/options/options.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/ranks/learner.h"
#include "trainer/run/run_log.h"
#include "trainer/run/run_state.h"

namespace tandem::trainer {

struct CheckpointOptions {
  int64_t every = 0;
  int64_t keep = 2;
  bool at_end = true;
};
void BindOptions(OptionBinder& binder, CheckpointOptions& options);

class Checkpointer {
 public:
  // What each checkpoint says of its run, and what one that is resumed from must agree with.
  struct Identity {
    std::string model;  // directory
    CheckpointIdentity model_identity;
    PromptOrder order;
  };
  // Pointers must outlive this object.
  Checkpointer(const CheckpointOptions& options, Identity identity, Learner* learner,
               RunState* state, RunLog* log)
      : options_(options),
        identity_(std::move(identity)),
        learner_(learner),
        state_(state),
        log_(log) {}

  // Takes state and weights from the newest whole checkpoint. Without one, a run that trained no
  // step begins at step 0, and so does any other where `may_start_over` is set and no checkpoint
  // was ever saved: its records are deleted. Checkpoints that were there and are gone are a loss
  // that only their owner can judge. Errors carry their exit code:
  //   kBadModelOrData  damaged, of another model, or gone
  //   kUsage           the run would ask for prompts in another order
  absl::Status Restore(bool may_start_over);

  bool IsDue() const { return options_.every > 0 && state_->version.value % options_.every == 0; }

  // Saves the live state. A checkpoint that cannot be written is an event and no error.
  absl::Status Save();

  // Saves at the end of a run, where that is due: always after a `stopped` run.
  //   exit code kStorage  it cannot be written
  absl::Status SaveLast(bool stopped);

  bool HasSavedLive() const { return saved_step_ == state_->version.value; }

  // Seconds of saving since the last call.
  double TakeSeconds();

 private:
  absl::Status StartOver(bool may_delete_steps);

  const CheckpointOptions options_;
  const Identity identity_;
  Learner* const learner_;
  RunState* const state_;
  RunLog* const log_;
  int64_t saved_step_ = 0;
  absl::Status save_error_;  // of the last save
  double seconds_ = 0;
};

}  // namespace tandem::trainer
