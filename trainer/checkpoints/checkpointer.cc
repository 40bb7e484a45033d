#include "trainer/checkpoints/checkpointer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, CheckpointOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "steps",
                 "save weights, optimizer and data cursor; 0: only at the end and when stopped");
  binder.Integer("keep", &options.keep, {.min = 1}, "checkpoints", "older ones are deleted");
  binder.Flag("at_end", &options.at_end, "save after the last step");
}

absl::Status Checkpointer::Restore(bool may_start_over) {
  RunDirectory& run = log_->directory();
  auto loaded = LoadLatestCheckpoint(run.checkpoints(), identity_.model_identity);
  if (loaded.status().code() == absl::StatusCode::kNotFound) return StartOver(may_start_over);
  if (!loaded.ok()) return WithExitCode(loaded.status(), ExitCode::kBadModelOrData);
  JsonFields fields;
  for (const std::string& refused : loaded->refused) {
    log::Error("a damaged checkpoint was passed over", {{"reason", refused}});
    fields.emplace_back("refused", JsonText(refused));
  }
  const Checkpoint& checkpoint = loaded->checkpoint;
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(CheckSameOrder(checkpoint.order, identity_.order), ExitCode::kUsage));
  TANDEM_RETURN_IF_ERROR(learner_->Restore(checkpoint.learner));
  TANDEM_RETURN_IF_ERROR(run.CutAfter(checkpoint.step));
  saved_step_ = checkpoint.step;
  state_->version = {checkpoint.step};
  state_->frontier = checkpoint.frontier;
  state_->planned = checkpoint.planned;
  state_->prompt_counts = checkpoint.prompt_counts;
  state_->unrecorded_skips = checkpoint.unrecorded_skips;
  state_->unrecorded_drops = checkpoint.unrecorded_drops;
  state_->run_id = checkpoint.run_id;
  state_->resumed = true;
  return log_->Event("resumed", absl::StrCat("from checkpoint of step ", checkpoint.step), fields);
}

absl::Status Checkpointer::StartOver(bool may_delete_steps) {
  RunDirectory& run = log_->directory();
  TANDEM_ASSIGN_OR_RETURN(const RunDirectory::Records records, run.ReadRecords());
  if (records.last_step > 0 && (!may_delete_steps || records.saved_checkpoint)) {
    return WithExitCode(
        NotFound(run.checkpoints(), " has no checkpoint to go on from, and the run has records of ",
                 records.last_step, " train steps, which a start at step 0 would delete: bring a ",
                 "checkpoint back, or start anew with --clean or another run.name"),
        ExitCode::kBadModelOrData);
  }
  TANDEM_RETURN_IF_ERROR(run.CutAfter(-1));
  return log_->Event(
      "started_over",
      absl::StrCat("no checkpoint was saved before: the run begins again at step 0, and the ",
                   "records of ", records.last_step, " train steps are deleted"));
}

absl::Status Checkpointer::Save() {
  log_->ShowPhase("checkpoint");
  const double start = MonotonicSeconds();
  Checkpoint checkpoint = {.step = state_->version.value,
                           .frontier = state_->frontier,
                           .planned = state_->planned,
                           .prompt_counts = state_->prompt_counts,
                           .unrecorded_skips = state_->unrecorded_skips,
                           .unrecorded_drops = state_->unrecorded_drops,
                           .run_id = state_->run_id,
                           .order = identity_.order,
                           .identity = identity_.model_identity};
  TANDEM_ASSIGN_OR_RETURN(checkpoint.learner, learner_->Save());
  save_error_ =
      SaveCheckpoint(log_->directory().checkpoints(), checkpoint, identity_.model, options_.keep);
  seconds_ += MonotonicSeconds() - start;
  if (!save_error_.ok()) {
    log::Error("a checkpoint could not be written", {{"reason", save_error_.ToString()}});
    return log_->Event("checkpoint_failed", save_error_.ToString());
  }
  saved_step_ = checkpoint.step;
  return log_->Event("checkpoint_saved", absl::StrCat("step ", checkpoint.step));
}

absl::Status Checkpointer::SaveLast(bool stopped) {
  if (HasSavedLive() || !(stopped || options_.at_end)) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(Save());
  return HasSavedLive() ? absl::OkStatus() : NotSaved(state_->version, saved_step_, save_error_);
}

double Checkpointer::TakeSeconds() { return std::exchange(seconds_, 0); }

}  // namespace tandem::trainer
