// RunTrainer: what a trainer process does once its configuration is read: find the other ranks,
// load the model, and run the loop (rank 0) or follow it. Used by main.cc.
#pragma once

#include "absl/status/status.h"
#include "common/base/exit_codes.h"
#include "trainer/trainer.h"
#include "trainer/trainer_options.h"

namespace tandem::trainer {

// Pins the models that are named by their names on the Hub to commits (common/hub/model_options.h);
// where the run goes on, to those of its config.yaml. Says on standard error which have moved.
// Errors are those of hub::PinModels.
absl::Status PinModels(bool goes_on, TrainerOptions& options);

// Says on standard error why it ended early. Installs the signal handlers. Returns the exit code.
int RunTrainer(TrainerOptions options, TrainerContext context);

// Says on standard error why the process ends; returns `code`, for main to return.
int Fail(const absl::Status& status, ExitCode code);

}  // namespace tandem::trainer
