// Trainer: the owner of everything a training run needs, and the loop that walks stage 3, then 4 to
// 8 (Learner), then 9. Used by main.cc; tests run it with a fake Learner against scripted servers.
//
// Create, Run once, destroy. Use from one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/observe/observation.h"
#include "common/process/stop_signal.h"
#include "trainer/metrics/trainer_health.h"
#include "trainer/ranks/learner.h"
#include "trainer/rollouts/server_lookup.h"
#include "trainer/run/run_directory.h"
#include "trainer/trainer_options.h"

namespace tandem::trainer {

// What comes from outside. What is pointed to must outlive the trainer.
struct TrainerContext {
  RunMode mode = RunMode::kFresh;
  std::string resolved_config;                            // YAML, for config.yaml
  std::function<void(const std::string& json)> progress;  // one line each; may be empty
  const StopSignal* stop = nullptr;
  Observation* observation = nullptr;
  TrainerHealth* health = nullptr;
  Resolver resolver = ResolveHost;  // of the names in trainer.servers
};

class Trainer {
 public:
  // Opens prompts, tokenizer, rewards and the run directory, and restores the last checkpoint when
  // resuming. Talks to no server yet. Errors carry their exit code (exit_codes.h).
  //   kUsage           run directory not empty, reward or data options that do not fit
  //   kBadModelOrData  model, tokenizer or prompts that cannot be read; a checkpoint of another
  //   model kStorage         the run directory cannot be written
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainerOptions& options,
                                                         std::unique_ptr<Learner> learner,
                                                         TrainerContext context);
  ~Trainer();  // gives the servers back
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains until `steps`, a stop signal (then saves a checkpoint and returns OK), or an error:
  //   kServerLost         no rollout server beyond patience
  //   kServerOwned        another run owns a server
  //   kDeliveryNotProven  a server does not run what was pushed
  //   kTooManySkipped     max_skipped_steps in a row without a finite loss or anything to train
  //   kStorage            metrics, events, rollouts or the last checkpoint cannot be written (one
  //                       before the last is an event)
  absl::Status Run();

  // Whether all steps are done; false after a Run that a signal or an alert ended.
  bool finished() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
