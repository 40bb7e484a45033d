// EngineThread: the one thread that owns the engine (stage 2). Commands wait in a queue and run
// between two steps. The events of a step go to callbacks, on that thread.
//
// Life cycle: construct, Start, Stop (or destroy). Thread-safe after Start. It waits passively: an
// idle or paused server costs no CPU. After Stop, or after the engine failed, every command is
// answered with UNAVAILABLE, so no caller waits for ever.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/weight_version.h"
#include "common/observe/health.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/weights/weight_sink.h"

namespace tandem::rollout {

struct ScoreResult {
  std::vector<SequenceScore> scores;
  WeightVersion version;  // the weights that scored
};

// The caller of Score.
struct ScoreCaller {
  bool is_owner = false;  // of the run that owns the server
  // Called on the engine thread before each slice, without a lock held. The score ends with the
  // first error that it returns. Null: wanted to the end.
  std::function<absl::Status()> wanted;
};

class EngineThread : public WeightSink {
 public:
  // All run on the engine thread, without a lock held; keep them short. Any may be null.
  struct Callbacks {
    std::function<void(std::vector<EngineEvent>)> on_events;
    // Add refused this group, or an install ended it.
    std::function<void(GroupKey, const absl::Status&)> on_rejected;
    std::function<void(WeightVersion)> on_installed;  // before Install returns
    // After every step, before its events. Groups that it aborts are gone before the next step.
    std::function<void()> on_stepped;
    std::function<void(const EngineStats&)> on_stats;     // after every step and command
    std::function<void(const absl::Status&)> on_failure;  // a step failed: the last call
    std::function<void()> on_resumed;                     // a pause ended
  };

  explicit EngineThread(std::unique_ptr<Engine> engine,
                        const SecondsClock& clock = MonotonicSeconds);
  ~EngineThread() override;  // Stop
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  void Start(Callbacks callbacks);
  void Stop();

  // The tokenizer of the model that the engine loaded; a scripted engine has none.
  bool has_tokenizer() const { return engine_->has_tokenizer(); }
  const Tokenizer& tokenizer() const { return engine_->tokenizer(); }

  // Could this group ever run here? Answered on the caller's thread.
  absl::Status Validate(const GroupRequest& request) const { return engine_->Validate(request); }

  // Adds the groups in this order before the next step: no step sees a part of them.
  void Submit(std::vector<GroupRequest> groups);

  // Each of these groups that still waits is admitted after all others, in this order.
  void PutLast(std::vector<GroupKey> keys);

  void Abort(GroupKey key);

  // Ends a group with the tokens that it has (events). A group without tokens is aborted and
  // rejected.
  void StopEarly(GroupKey key);

  // Engine::Continue, whose events go to the callbacks. `done` runs on the engine thread after them.
  //   UNAVAILABLE  the engine has stopped
  void Continue(GroupKey key, TurnAnswer answer, std::function<void(absl::Status)> done);

  // Scores are computed slice by slice, in turn. While the owner wants scores, every second slice
  // is one of its own, however many others wait. While groups decode, all scores together take at
  // most half of the time, and no command waits for more than a slice. `done` runs on the engine
  // thread, or on this one when the score is refused.
  //   RESOURCE_EXHAUSTED  QUEUE_FULL: kMaxWaitingScores are not done yet, or kMaxScoresOfOthers of
  //                       callers that do not own the server
  //   ABORTED             new weights were installed before it was done
  //   any other code from Engine::StartScore and ScoreRun::Step
  void Score(std::vector<ScoreSequence> sequences, const ScoreOptions& options,
             std::function<void(absl::StatusOr<ScoreResult>)> done, ScoreCaller caller = {});

  // No step runs between Pause's `done` and Resume; sequences keep their state. Idempotent. Pause:
  //   FAILED_PRECONDITION  an install waits for the running groups to end (in-flight policy drain);
  //                        in a pause they never would, and Install would wait for ever
  void Pause(std::function<void(absl::Status)> done) { SetPaused(true, std::move(done)); }
  void Resume(std::function<void(absl::Status)> done) { SetPaused(false, std::move(done)); }
  // Ends a pause if `wanted` returns true. It is called on the engine thread, in turn with the
  // other commands, and only in a pause.
  void ResumeIf(std::function<bool()> wanted);
  bool paused() const { return paused_.load(); }

  // WeightSink. Stage runs on the caller's thread beside the steps; Install waits for the running
  // step, and with in-flight policy drain for the running groups. Returns the seconds the swap held
  // steps back.
  //   FAILED_PRECONDITION  policy drain, groups run, and the engine is paused: they would never end
  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(std::vector<HostTensor> tensors) override {
    return engine_->Stage(std::move(tensors));
  }
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(
      const AdapterFactors& adapter) override {
    return engine_->StageAdapter(adapter);
  }
  bool unmerged() const override { return engine_->unmerged(); }
  std::optional<Device> arrival_memory() const override { return engine_->arrival_memory(); }
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() override { return engine_->Arrive(); }
  absl::StatusOr<double> Install(std::unique_ptr<StagedWeights> staged,
                                 WeightVersion version) override;

  // As of the last step or command.
  EngineStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // Seconds since the thread last ended a step or took up a command; 0 while it has nothing to do.
  // Weights are staged on other threads, so a long weight push does not show here.
  double SilentSeconds() const { return heartbeat_.SilentSeconds(); }

  static constexpr int kMaxWaitingScores = 64;
  // Half of the places, as in the queue of groups. This holds also while nobody owns the server, so
  // that a run finds free places when it claims it. The owner may fill all of them.
  static constexpr int kMaxScoresOfOthers = kMaxWaitingScores / 2;

 private:
  // Called with the engine, or with null when there is none any more.
  using Command = std::function<void(Engine*)>;

  struct RunningScore {
    std::unique_ptr<ScoreRun> run;
    WeightVersion version;  // it began under
    std::function<void(absl::StatusOr<ScoreResult>)> done;
    ScoreCaller caller;
  };
  using Scores = std::list<RunningScore>;

  void Post(Command command) ABSL_LOCKS_EXCLUDED(mu_);
  void Run();
  bool CanStep() const { return !paused_.load() && engine_->HasWork(); }
  bool StepGroups();
  void StepScores(bool groups_run);
  Scores::iterator NextScore();
  void EndScore(Scores::iterator score, absl::StatusOr<ScoreResult> result);
  absl::Status TakeScorePlace(bool is_owner) ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveScorePlace(bool is_owner) ABSL_LOCKS_EXCLUDED(mu_);
  bool WaitForWork(std::deque<Command>* commands) ABSL_LOCKS_EXCLUDED(mu_);
  void PublishStats() ABSL_LOCKS_EXCLUDED(mu_);
  void InstallWhenDrained();
  void SetPaused(bool paused, std::function<void(absl::Status)> done);
  void CloseQueue() ABSL_LOCKS_EXCLUDED(mu_);  // answers what waits

  const std::unique_ptr<Engine> engine_;
  Callbacks callbacks_;
  const SecondsClock clock_;
  // Used by the engine thread only:
  std::deque<Command> waiting_installs_;  // until running groups have ended
  Scores scores_;  // not done; the first of the owner's and the first of the others are next
  bool owners_turn_ = true;  // at the next slice, if the owner wants a score
  double owed_seconds_ = 0;  // how long groups may step before the next slice
  std::thread thread_;
  Heartbeat heartbeat_;
  std::atomic<bool> paused_{false};

  mutable Mutex mu_;
  CondVar wake_;
  std::deque<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // Scores that were taken and are not done.
  int owners_scores_ ABSL_GUARDED_BY(mu_) = 0, others_scores_ ABSL_GUARDED_BY(mu_) = 0;
  EngineStats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
