// The part of Trainer that keeps the best checkpoint of a run, and ends the run with it once the KL
// budget is passed (alerts.on_kl: roll_back).
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/checkpoints/best_checkpoint.h"
#include "trainer/checkpoints/checkpointer.h"
#include "trainer/run/run_log.h"
#include "trainer/run_setup.h"
#include "trainer/trainer.h"
#include "trainer/weight_push/delivery.h"

namespace tandem::trainer {
namespace {

// What the checkpoints of a run are compared by: held-out gold, or evaluations; empty: neither is
// measured as the run goes on.
std::string BestMetric(const TrainerOptions& options) {
  const bool evaluates = options.eval.every > 0 && HasEvaluation(options.data);
  if (!options.reward.gold.empty()) return evaluates ? "eval/gold" : "reward/gold";
  return evaluates ? "eval/greedy" : "";
}

}  // namespace

absl::Status Trainer::OpenBestCheckpoint() {
  if (options_.alerts.on_kl != OnKl::kRollBack) return absl::OkStatus();
  best_ = std::make_unique<BestCheckpoint>(log_->directory().checkpoints(), BestMetric(options_));
  return WithExitCode(best_->Open(state_.version.value), ExitCode::kBadModelOrData);
}

// A best checkpoint that cannot be kept is an event, as one that cannot be written.
absl::Status Trainer::SaveCheckpoint(const MetricsLine& line) {
  TANDEM_RETURN_IF_ERROR(checkpointer_->Save());
  if (best_ == nullptr || !checkpointer_->HasSavedLive() || state_.stopped_by_alert) {
    return absl::OkStatus();
  }
  const absl::Status kept = best_->Note(state_.version.value, line);
  if (kept.ok()) return absl::OkStatus();
  log::Error("the best checkpoint could not be kept", {{"reason", kept.ToString()}});
  return log_->Event("checkpoint_failed", absl::StrCat("as the best: ", kept.ToString()));
}

// The run passed its KL budget: the weights of its best checkpoint become the last version.
absl::Status Trainer::RollBack() {
  if (state_.roll_back_reason.empty()) return absl::OkStatus();
  const auto checkpoint = best_->Load(inputs_->identity.model_identity);
  if (checkpoint.status().code() == absl::StatusCode::kNotFound) {
    return log_->Event(
        "roll_back_failed",
        absl::StrCat(state_.roll_back_reason, ": ", checkpoint.status().message(),
                     "; the run ends with the weights of step ", state_.version.value));
  }
  TANDEM_RETURN_IF_ERROR(WithExitCode(checkpoint.status(), ExitCode::kBadModelOrData));
  state_.weights_known = false;
  TANDEM_RETURN_IF_ERROR(learner_->Restore(checkpoint->learner));
  state_.weights_known = true;
  const int64_t passed_at = state_.version.value;
  state_.version = state_.version.Next();
  log_->metrics().SetVersion(state_.version);
  TANDEM_ASSIGN_OR_RETURN(CastWeights cast, learner_->Cast(server_dtype_));
  TANDEM_RETURN_IF_ERROR(Publish(std::move(cast)).status());
  TANDEM_RETURN_IF_ERROR(delivery_->Verify());
  return log_->Event(
      "rolled_back",
      absl::StrCat("at step ", passed_at, " ", state_.roll_back_reason, ": the weights of ",
                   Describe(*best_->best()), " are version ", state_.version.value),
      {{"from_step", absl::StrCat(passed_at)}, {"to_step", absl::StrCat(best_->best()->step)}});
}

}  // namespace tandem::trainer
