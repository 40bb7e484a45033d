// Trainer: the owner of everything a training run needs, and the loop that walks stages 1 to 3
// (collect), 4 to 8 (train, by the Learner) and 9 (push). Used by main.cc; tests run it with a fake
// Learner against scripted servers.
//
// Create, Run once, destroy. Use from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/observe/observation.h"
#include "common/process/stop_signal.h"
#include "common/rpc/credentials.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/metrics/trainer_health.h"
#include "trainer/ranks/learner.h"
#include "trainer/rollouts/server_lookup.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/run_state.h"
#include "trainer/trainer_options.h"

namespace tandem::trainer {

class BestCheckpoint;
class CaptureWriter;
class Checkpointer;
class Delivery;
class DriftMonitor;
class ForeignBridge;
class GroupCollector;
class Ledger;
class RecentWeights;
class RewardQueue;
class RunLog;
struct PushTotals;
struct RunInputs;
struct RunParts;

// What comes from outside. Pointers must outlive the trainer.
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
  // resuming. Calls no server yet. Errors carry their exit code (exit_codes.h):
  //   kUsage           run directory not empty, reward or data options that do not fit
  //   kBadModelOrData  model, tokenizer or prompts that cannot be read; a checkpoint of another
  //                    model
  //   kStorage         the run directory cannot be written
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
  bool finished() const { return state_.version.value >= options_.steps; }

 private:
  // Seconds of one train step.
  struct StepTimes {
    double rollout = 0, push = 0, eval = 0;
    double reward = 0;  // the loop waited for nothing but rewards
  };

  Trainer(const TrainerOptions& options, std::unique_ptr<Learner> learner, TrainerContext context);

  // Set-up, in order.
  absl::Status OpenRun(RunMode mode, rpc::Caller caller);
  absl::Status ConnectServers();
  absl::Status BridgeForeignServers(rpc::Caller* caller);

  absl::Status RunSteps();
  absl::Status Step();
  absl::Status Collect();  // stages 1 to 3; returns early when stopped
  absl::StatusOr<bool> TrainOn(StepExperience* step, MetricsLine* line);  // stages 4 to 8
  absl::Status Push(MetricsLine* line);                                   // stage 9
  absl::StatusOr<PushTotals> Publish(CastWeights cast);
  absl::Status SkipStep(const std::string& reason, const StepExperience& step);
  absl::Status Capture(const StepExperience& step, MetricsLine* line);
  absl::Status RecordStep(const StepExperience& step, double step_seconds, MetricsLine* line);
  void WaitForRewardService();
  absl::Status RecordGroups(const StepExperience& step, const std::string& skip_reason);
  absl::Status RaiseAlerts(const MetricsLine& line);
  // roll_back.cc
  absl::Status OpenBestCheckpoint();
  absl::Status SaveCheckpoint(const MetricsLine& line);
  absl::Status RollBack();
  absl::Status Evaluate(MetricsLine* line);
  absl::Status EvaluationFailed(const absl::Status& why);
  absl::Status EvaluateAtStart();
  absl::Status Finish();
  void RecordFailure(const absl::Status& failure);

  void ShowQueues();
  bool Stopping() const { return context_.stop->Requested() || state_.stopped_by_alert; }
  RunParts Parts() const;

  // Constant once Create has returned.
  const TrainerOptions options_;
  const TrainerContext context_;
  const std::unique_ptr<Learner> learner_;
  std::unique_ptr<RunInputs> inputs_;

  RunState state_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<BestCheckpoint> best_;  // null: the run never goes back
  std::unique_ptr<CaptureWriter> captures_;
  std::unique_ptr<RecentWeights> recent_;
  std::unique_ptr<DriftMonitor> drift_;

  // The rollout servers, from ConnectServers on.
  std::unique_ptr<ForeignBridge> foreign_;  // null: all servers are our own
  std::unique_ptr<ServerPool> pool_;        // empty until then
  std::unique_ptr<ServerLookup> lookup_;
  std::unique_ptr<ServerScorer> scorer_;
  std::unique_ptr<RolloutClient> client_;
  std::unique_ptr<WeightPublisher> publisher_;
  std::unique_ptr<Delivery> delivery_;
  std::unique_ptr<RewardQueue> rewards_;  // wakes the client
  std::unique_ptr<GroupCollector> collector_;
  DType server_dtype_ = DType::kF32;

  // The step under way.
  StepTimes times_;
  LearnerReport report_;
};

}  // namespace tandem::trainer
