// DriftMonitor: the training-inference mismatch (drift) that a run measures beside that of its own
// train steps. It scores the probe set on both sides, version by version, and splits the drift of
// some steps into its additive parts. Decisions are pure and stand in probe_series.h and
// step_split.h; here are the calls they need. Used by trainer.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/model_config.h"
#include "common/options/options.h"
#include "trainer/drift/probe_series.h"
#include "trainer/drift/probe_set.h"
#include "trainer/drift/recent_weights.h"
#include "trainer/drift/step_split.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/prompts/group_request.h"
#include "trainer/ranks/learner.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/rollouts/server_scorer.h"

namespace tandem::trainer {

// How often a run scores its probe set (docs/attribution.md).
struct ProbeOptions {
  int64_t every = 20;  // weight versions; 0: off
  int64_t completions = 16;
  std::string file;  // empty: the first completions of the run

  bool Due(int64_t version) const { return every > 0 && version % every == 0; }
  // Whether a version up to `oldest_lag` later will be compared with this one.
  bool Needed(int64_t version, int64_t oldest_lag) const {
    for (int64_t lag = 0; lag <= oldest_lag; ++lag) {
      if (Due(version + lag)) return true;
    }
    return false;
  }
};
void BindOptions(OptionBinder& binder, ProbeOptions& options);

// How often a run splits the drift of a train step into its parts.
struct SplitOptions {
  int64_t every = 100;  // train steps; 0: off

  bool Due(int64_t step) const { return every > 0 && step % every == 0; }
};
void BindOptions(OptionBinder& binder, SplitOptions& options);

struct DriftMonitorOptions {
  ProbeOptions probe;
  SplitOptions split;
  TrainSamplingOptions sampling;
  int64_t prompts_per_step = 1;
  bool steps_are_equal = true;  // each takes prompts_per_step groups
  int64_t max_staleness = 0;
  int64_t hold_back_versions = 0;  // of the weight push
};

// Use from the thread that trains, except ReplayWhenSampled. Methods that score report a server
// that fails as an event and go on without it; their errors are those of the learner and of the
// event sink, and exit code kStorage where a file cannot be written.
class DriftMonitor {
 public:
  struct Context {
    Learner* learner = nullptr;
    const RecentWeights* recent = nullptr;
    EventSink event;
    std::function<void(const std::string& phase)> show_phase;
  };
  DriftMonitor(const DriftMonitorOptions& options, Context context)
      : options_(options), context_(std::move(context)) {}

  // Takes the probe set that a resumed run chose, or that of options.probe.file. Without either the
  // first step chooses it. `run_directory` keeps the set and what pushes it saw. Exit codes:
  //   kStorage         the directory cannot be written
  //   kBadModelOrData  a set or a record that cannot be read, or that the model cannot score
  absl::Status Open(const std::string& run_directory, bool resumes, const ModelConfig& model);

  // The servers that score, which must outlive this object or every call to it. `client` may call
  // ReplayWhenSampled from now on.
  void Connect(const std::string& run_id, RolloutClient* client, const ServerScorer* scorer);

  // `dtype`: of the servers' weights. fp32 servers have no cast to split off.
  void SetServerDType(DType dtype) { server_dtype_ = dtype; }

  // What its server makes of a group right after it was sampled, where the weights that sampled it
  // may be gone by the train step. Thread-safe; runs on a thread of the client. A replay that fails
  // is made again at the step.
  std::optional<ScoredByServer> ReplayWhenSampled(const rollout::v1::GenerateGroupRequest& request,
                                                  const FinishedGroup& group) const;
  void KeepReplay(int64_t group_id, ScoredByServer replay);

  // `count`: train steps of the run whose groups were taken and that made no weights.
  void SetSkippedSteps(int64_t count) { skipped_steps_ = count; }

  // The last push: ||masters - masters of the push before||.
  void SetPushDistance(double distance) { push_distance_ = distance; }

  // Scores the probe set on both sides, where that is due, under `version`, from which the step
  // that `line` is about starts. Chooses the set from the groups of `step` where there is none.
  absl::Status MeasureProbe(WeightVersion version, const StepExperience& step, MetricsLine* line);

  // Scores the tokens of a step whose split is due, before the step: its weights and those of the
  // servers are still the ones that sampled.
  absl::StatusOr<std::optional<StepSplit>> ScoreForSplit(WeightVersion version,
                                                         const StepExperience& step,
                                                         MetricsLine* line);

  // Adds the split to the line once the step is done: its proximal log-probs are the last scores.
  void Report(WeightVersion version, const StepExperience& step,
              const std::optional<StepSplit>& split, const PerToken& proximal,
              MetricsLine* line) const;

 private:
  bool MayBeSplit(const rollout::v1::GenerateGroupRequest& request,
                  const FinishedGroup& group) const;
  void UseProbe(ProbeSet set);
  absl::Status ChooseProbe(const StepExperience& step);
  absl::StatusOr<TrainerProbe> ScoreProbe(WeightVersion version);
  absl::Status AskServersForProbe();
  absl::Status WritePushes(int64_t step);
  void DoubtUnlessFine(int server, const absl::Status& status) const;
  rollout::v1::ScoreRequest RequestAsSampled() const;
  std::vector<size_t> TakeReplays(const StepExperience& step, StepSplit* split);
  absl::Status ReplayOnServers(const StepExperience& step, const std::vector<size_t>& places,
                               StepSplit* split);
  absl::Status ScoreUnder(int64_t sampled_by, WeightVersion version, const StepExperience& step,
                          StepSplit* split);

  const DriftMonitorOptions options_;
  const Context context_;
  std::string directory_;  // RUN/probe
  std::string run_id_;
  RolloutClient* client_ = nullptr;
  const ServerScorer* scorer_ = nullptr;
  DType server_dtype_ = DType::kF32;

  ProbeSet probe_;                             // empty until the first step has chosen it
  std::unique_ptr<ProbeSeries> series_;        // there with the set
  double push_distance_ = 0;                   // NaN: unknown
  std::map<int64_t, ScoredByServer> replays_;  // by group id, until the group's step
  std::atomic<int64_t> skipped_steps_ = 0;     // read on threads of the client
};

}  // namespace tandem::trainer
