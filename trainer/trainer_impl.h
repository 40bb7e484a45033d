// Trainer::Impl: the parts of a run and the steps over them. Internal to trainer.cc (the loop) and
// trainer_setup.cc (what must be there before it starts).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/model_config.h"
#include "common/observe/tracer.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/drift/probe_series.h"
#include "trainer/drift/probe_set.h"
#include "trainer/drift/recent_weights.h"
#include "trainer/drift/step_split.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/metrics/trainer_metrics.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/ranks/learner.h"
#include "trainer/rewards/rewards.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/rollouts/server_lookup.h"
#include "trainer/rollouts/server_scorer.h"
#include "trainer/run/capture_writer.h"
#include "trainer/run/checkpoint.h"
#include "trainer/run/evaluation.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/run_history.h"
#include "trainer/server_roster.h"
#include "trainer/trainer.h"
#include "trainer/trainer_options.h"
#include "trainer/weight_push/delivery.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

// Seconds of one train step; `checkpoint` is that of the one written before it.
struct LoopTimes {
  double rollout = 0, reward = 0, push = 0, checkpoint = 0, eval = 0;
};

// What a run measures of drift beside its steps.
struct DriftInstruments {
  std::unique_ptr<ServerScorer> scorer;
  ProbeSet probe;                             // empty until the first step has chosen it
  std::unique_ptr<ProbeSeries> series;        // there with the set
  double push_distance = 0;                   // of the last push; NaN: unknown
  std::map<int64_t, ScoredByServer> replays;  // group id -> what its server made of it right after
};

// The spans of the train step under way, each while it lasts.
struct StepSpans {
  std::unique_ptr<Tracer> tracer;  // null: none are kept
  std::unique_ptr<ScopedSpan> step, phase;
  std::string phase_name;

  TraceParent parent() const {
    return step == nullptr ? TraceParent{tracer.get()} : step->parent();
  }
  void BeginStep(int64_t number);
  void EndStep();
  void BeginPhase(const std::string& name);  // ends the one before
};

struct Trainer::Impl {
  // Set up, in order.
  absl::Status OpenInputs();
  absl::Status OpenRun(RunMode mode);
  absl::Status Restore();
  absl::Status StartOver();
  DrawOrder Order() const;
  absl::Status CheckServer(const rollout::v1::GetInfoResponse& info) const;
  absl::Status ConnectServers();
  absl::Status WriteCard();

  // One train step.
  absl::Status Step();
  absl::Status Collect();  // stages 1 to 3; returns early when stopped
  absl::Status AskForGroups();
  absl::Status TakeGroup(FinishedGroup finished);
  // Stages 4 to 8; leaves the advantages of the loss in the completions of `step`.
  absl::StatusOr<bool> TrainOn(StepExperience* step, MetricsLine* line);
  absl::Status Push(MetricsLine* line);  // 9
  absl::Status Publish(CastWeights cast, PushTotals* totals);
  absl::Status Capture(const StepExperience& step, MetricsLine* line);
  offpolicy::CaptureManifest DescribeCapture(int64_t step) const;
  // Drift beside the step's own (trainer_drift.cc).
  absl::Status OpenProbe(RunMode mode);
  absl::Status ChooseProbe(const StepExperience& step);
  void UseProbe(ProbeSet set);
  absl::Status MeasureProbe(const StepExperience& step, MetricsLine* line);
  absl::StatusOr<TrainerProbe> ScoreProbe();
  absl::Status AskServersForProbe();
  void DoubtUnlessFine(int server, const absl::Status& status) const;
  absl::Status WritePushes(int64_t step);
  absl::StatusOr<std::optional<StepSplit>> ScoreForSplit(const StepExperience& step,
                                                         MetricsLine* line);
  std::optional<ScoredByServer> ReplayWhenDrawn(const rollout::v1::GenerateGroupRequest& request,
                                                const FinishedGroup& group) const;
  std::vector<size_t> TakeReplays(const StepExperience& step, StepSplit* split);
  absl::Status ReplayOnServers(const StepExperience& step, const std::vector<size_t>& which,
                               StepSplit* split);
  rollout::v1::ScoreRequest AsDrawn() const;
  absl::Status ScoreUnder(int64_t drawn_by, const StepExperience& step, StepSplit* split);
  void SplitDrift(const StepExperience& step, const std::optional<StepSplit>& split,
                  MetricsLine* line);

  absl::Status SkipStep(const std::string& reason, const StepExperience& step);
  absl::Status RecordStep(const StepExperience& step, double step_seconds, MetricsLine* line);

  absl::Status Evaluate(MetricsLine* line);
  absl::Status EvaluationFailed(const absl::Status& why);
  absl::Status EvaluateAtStart();
  absl::Status SaveCheckpoint();
  absl::Status Finish();
  absl::Status RunSteps();
  void RecordFailure(const absl::Status& failure);
  absl::Status RaiseAlerts(const MetricsLine& line);
  // Of the weights there are; or of the step that makes the next, whose events a resume from these
  // weights takes back.
  absl::Status Event(const std::string& kind, const std::string& message, JsonFields fields = {});
  absl::Status EventOfStep(const std::string& kind, const std::string& message, JsonFields fields);
  absl::Status EventAt(WeightVersion at, const std::string& kind, const std::string& message,
                       const JsonFields& fields);
  void ShowPhase(const std::string& phase, const std::string& more = "");
  void ShowMetrics(const MetricsLine& line);
  void ShowQueues();
  bool Stopping() const { return context.stop->Requested() || stop_early; }

  TrainerOptions options;
  TrainerContext context;
  std::unique_ptr<Learner> learner;
  ModelConfig model_config;
  std::unique_ptr<Tokenizer> tokenizer;
  CheckpointIdentity identity;
  std::unique_ptr<PromptSource> train_prompts, eval_prompts;  // eval may be null
  std::unique_ptr<RewardFunction> rewards;
  std::unique_ptr<RunDirectory> run;
  RunHistory history;
  std::unique_ptr<TrainerMetrics> metrics;
  StepSpans spans;
  std::string run_id;
  std::unique_ptr<ServerLookup> lookup;
  std::unique_ptr<RolloutClient> client;
  std::unique_ptr<WeightPublisher> publisher;
  std::unique_ptr<ServerRoster> roster;
  std::unique_ptr<Delivery> delivery;
  std::unique_ptr<ExperienceBuffer> buffer;
  std::unique_ptr<CaptureWriter> captures;
  std::unique_ptr<RecentWeights> recent;
  DriftInstruments drift;

  WeightVersion version;  // of the learner's weights
  DType server_dtype = DType::kF32;
  bool resumed = false;
  bool stop_early = false;
  int64_t skipped_in_row = 0;
  // What was skipped since the last line of metrics.jsonl: the next line counts it, because a step
  // that makes no version has no number of its own. Groups without what was sampled.
  int64_t unrecorded_skips = 0;
  std::vector<DroppedGroup> unrecorded_drops;
  // Since the run began: so many steps more had their groups taken than made weights. Read on
  // threads of the client.
  std::atomic<int64_t> skipped_steps = 0;
  int64_t saved_step = 0;
  int64_t frontier = 0;     // the first step whose groups neither trained nor were given up
  absl::Status save_error;  // of the last checkpoint tried
  bool weights_known =
      true;                 // false while, and for ever after it failed, a train step changes them
  int64_t groups_done = 0;  // of the step being collected
  LoopTimes times;
  LearnerReport report;
};

}  // namespace tandem::trainer
