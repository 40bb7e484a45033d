#include "rollout_server/groups/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"

namespace tandem::rollout {
namespace {

absl::Status Stopped() { return Unavailable("the engine has stopped"); }

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Engine> engine, const SecondsClock& clock)
    : engine_(std::move(engine)), clock_(clock), heartbeat_(clock) {}

EngineThread::~EngineThread() { Stop(); }

void EngineThread::Start(Callbacks callbacks) {
  TANDEM_CHECK(!thread_.joinable());
  callbacks_ = std::move(callbacks);
  PublishStats();
  thread_ = std::thread([this] { Run(); });
}

void EngineThread::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  CloseQueue();
}

void EngineThread::Submit(std::vector<GroupRequest> groups) {
  auto shared = std::make_shared<std::vector<GroupRequest>>(std::move(groups));
  Post([this, shared](Engine* engine) {
    for (GroupRequest& group : *shared) {
      const GroupKey key = group.key;
      const absl::Status added = engine ? engine->Add(std::move(group)) : Stopped();
      if (!added.ok() && callbacks_.on_rejected) callbacks_.on_rejected(key, added);
    }
  });
}

void EngineThread::PutLast(std::vector<GroupKey> keys) {
  Post([keys = std::move(keys)](Engine* engine) {
    for (const GroupKey key : keys) {
      if (engine) engine->PutLast(key);
    }
  });
}

void EngineThread::Abort(GroupKey key) {
  Post([key](Engine* engine) {
    if (engine) engine->Abort(key);
  });
}

void EngineThread::StopEarly(GroupKey key) {
  Post([this, key](Engine* engine) {
    if (!engine) return;
    std::vector<EngineEvent> events = engine->StopEarly(key);
    if (!events.empty()) {
      if (callbacks_.on_events) callbacks_.on_events(std::move(events));
      return;
    }
    engine->Abort(key);
    if (callbacks_.on_rejected) {
      callbacks_.on_rejected(key, Aborted("stopped early, with nothing drawn yet"));
    }
  });
}

void EngineThread::Continue(GroupKey key, TurnAnswer answer,
                            std::function<void(absl::Status)> done) {
  Post([this, key, answer = std::move(answer), done = std::move(done)](Engine* engine) {
    absl::StatusOr<std::vector<EngineEvent>> events = Stopped();
    if (engine) events = engine->Continue(key, answer);
    absl::Status status = events.status();
    if (events.ok() && !events->empty() && callbacks_.on_events) {
      callbacks_.on_events(*std::move(events));
    }
    done(std::move(status));
  });
}

absl::Status EngineThread::TakeScorePlace(bool is_owner) {
  MutexLock lock(&mu_);
  if (owners_scores_ + others_scores_ >= kMaxWaitingScores) {
    return rpc::Refused(
        rpc::Refusal::kQueueFull,
        ResourceExhausted("too many Score calls are waiting (limit ", kMaxWaitingScores, ")"));
  }
  if (!is_owner && others_scores_ >= kMaxScoresOfOthers) {
    return rpc::Refused(
        rpc::Refusal::kQueueFull,
        ResourceExhausted("too many Score calls are waiting: ", kMaxScoresOfOthers, " of the ",
                          kMaxWaitingScores, " places are for callers that do not own the server"));
  }
  ++(is_owner ? owners_scores_ : others_scores_);
  return absl::OkStatus();
}

void EngineThread::LeaveScorePlace(bool is_owner) {
  MutexLock lock(&mu_);
  --(is_owner ? owners_scores_ : others_scores_);
}

void EngineThread::Score(std::vector<ScoreSequence> sequences, const ScoreOptions& options,
                         std::function<void(absl::StatusOr<ScoreResult>)> done,
                         ScoreCaller caller) {
  absl::Status has_place = TakeScorePlace(caller.is_owner);
  if (!has_place.ok()) return done(std::move(has_place));
  auto shared = std::make_shared<std::vector<ScoreSequence>>(std::move(sequences));
  Post([this, shared, options, done = std::move(done), caller = std::move(caller)](Engine* engine) {
    absl::StatusOr<std::unique_ptr<ScoreRun>> run = Stopped();
    if (engine) run = engine->StartScore(std::move(*shared), options);
    if (!run.ok()) {
      LeaveScorePlace(caller.is_owner);
      return done(std::move(run).status());
    }
    scores_.push_back({*std::move(run), engine->live_version(), done, caller});
  });
}

void EngineThread::EndScore(Scores::iterator score, absl::StatusOr<ScoreResult> result) {
  const auto done = std::move(score->done);
  const bool is_owner = score->caller.is_owner;
  scores_.erase(score);  // gives its KV back
  PublishStats();        // an idle engine would publish only at the next command
  LeaveScorePlace(is_owner);
  done(std::move(result));
}

void EngineThread::SetPaused(bool paused, std::function<void(absl::Status)> done) {
  Post([this, paused, done = std::move(done)](Engine* engine) {
    absl::Status changed = engine ? absl::OkStatus() : Stopped();
    if (engine && paused && !waiting_installs_.empty()) {
      changed = FailedPrecondition(
          "a commit waits for the running groups to end (engine.in_flight is drain), which in a "
          "pause they never would: pause when it has ended");
    }
    if (changed.ok() && paused_.exchange(paused) && !paused && callbacks_.on_resumed) {
      callbacks_.on_resumed();
    }
    if (done) done(std::move(changed));
  });
}

void EngineThread::ResumeIf(std::function<bool()> wanted) {
  Post([this, wanted = std::move(wanted)](Engine* engine) {
    if (engine == nullptr || !paused_.load() || !wanted()) return;
    paused_.store(false);
    if (callbacks_.on_resumed) callbacks_.on_resumed();
  });
}

absl::StatusOr<double> EngineThread::Install(std::unique_ptr<StagedWeights> staged,
                                             WeightVersion version) {
  auto shared = std::make_shared<std::unique_ptr<StagedWeights>>(std::move(staged));
  auto swapped = std::make_shared<std::promise<absl::StatusOr<double>>>();
  std::future<absl::StatusOr<double>> result = swapped->get_future();
  Command install = [this, shared, swapped, version](Engine* engine) {
    if (!engine) return swapped->set_value(Stopped());
    const double begin = MonotonicSeconds();
    const std::vector<GroupKey> ended = engine->Install(std::move(*shared), version);
    const double seconds = MonotonicSeconds() - begin;
    if (callbacks_.on_installed) callbacks_.on_installed(version);
    swapped->set_value(seconds);
    for (const GroupKey key : ended) {
      if (!callbacks_.on_rejected) continue;
      callbacks_.on_rejected(key,
                             Aborted("new weights came (engine.in_flight is abort): ask again"));
    }
  };
  Post([this, swapped, install = std::move(install)](Engine* engine) {
    if (!engine || engine->in_flight() != InFlight::kDrain) return install(engine);
    if (paused_.load() && engine->Stats().num_groups_running > 0) {
      return swapped->set_value(FailedPrecondition(
          "groups run and the server is paused, so they would never end (engine.in_flight is "
          "drain): resume first"));
    }
    engine->HoldAdmissions(true);
    waiting_installs_.push_back(install);
  });
  return result.get();  // ends with a step, the running groups, or the engine
}

EngineStats EngineThread::stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

void EngineThread::Post(Command command) {
  {
    MutexLock lock(&mu_);
    if (!closed_) {
      commands_.push_back(std::move(command));
      heartbeat_.Wake();
      wake_.Notify();
      return;
    }
  }
  command(nullptr);
}

void EngineThread::Run() {
  pthread_setname_np(pthread_self(), "tandem-engine");
  std::deque<Command> commands;
  while (WaitForWork(&commands)) {
    for (const Command& command : commands) {
      heartbeat_.Beat();
      command(engine_.get());
    }
    commands.clear();
    InstallWhenDrained();
    const bool groups_run = CanStep();
    if (!groups_run) {
      PublishStats();
    } else if (!StepGroups()) {
      return;
    }
    if (!scores_.empty()) StepScores(groups_run);
  }
}

// False when the engine failed.
bool EngineThread::StepGroups() {
  const bool owes = owed_seconds_ > 0;
  const double begin = owes ? clock_() : 0;
  absl::StatusOr<std::vector<EngineEvent>> events = engine_->Step();
  if (!events.ok()) {
    CloseQueue();
    if (callbacks_.on_failure) callbacks_.on_failure(events.status());
    return false;
  }
  if (owes) owed_seconds_ -= clock_() - begin;
  if (callbacks_.on_stepped) callbacks_.on_stepped();
  PublishStats();
  if (callbacks_.on_events && !events->empty()) callbacks_.on_events(*std::move(events));
  return true;
}

// The owner and the others take turns while both want scores. The owner does not have precedence:
// it may wait for KV that was lent to another's score, which must go on to give it back.
EngineThread::Scores::iterator EngineThread::NextScore() {
  const auto whose = std::ranges::find(
      scores_, owners_turn_, [](const RunningScore& score) { return score.caller.is_owner; });
  return whose == scores_.end() ? scores_.begin() : whose;
}

// Ends the scores that are no longer wanted, and then computes a slice of the one whose turn it is.
// Before the next slice, groups get as much time as this one took.
void EngineThread::StepScores(bool groups_run) {
  for (auto score = scores_.begin(); score != scores_.end();) {
    const auto one = score++;
    absl::Status wanted = one->caller.wanted ? one->caller.wanted() : absl::OkStatus();
    if (!wanted.ok()) EndScore(one, std::move(wanted));
  }
  if (scores_.empty() || (groups_run && owed_seconds_ > 0)) return;
  const double begin = clock_();
  const auto score = NextScore();
  owners_turn_ = !score->caller.is_owner;
  absl::StatusOr<ScoreProgress> progress = score->run->Step();
  owed_seconds_ = clock_() - begin;
  if (!progress.ok()) return EndScore(score, std::move(progress).status());
  if (*progress == ScoreProgress::kDone) {
    return EndScore(score, ScoreResult{score->run->Take(), score->version});
  }
  scores_.splice(scores_.end(), scores_, score);
}

void EngineThread::InstallWhenDrained() {
  if (waiting_installs_.empty() || engine_->Stats().num_groups_running > 0) return;
  for (const Command& install : std::exchange(waiting_installs_, {})) install(engine_.get());
  engine_->HoldAdmissions(false);
}

bool EngineThread::WaitForWork(std::deque<Command>* commands) {
  const bool drained = !waiting_installs_.empty() && engine_->Stats().num_groups_running == 0;
  const bool can_step = drained || !scores_.empty() || CanStep();
  MutexLock lock(&mu_);
  while (!stopping_ && commands_.empty() && !can_step) {
    heartbeat_.Rest();
    wake_.Wait(&mu_);
  }
  heartbeat_.Beat();
  commands->swap(commands_);
  return !stopping_ || !commands->empty();
}

void EngineThread::PublishStats() {
  const EngineStats stats = engine_->Stats();
  {
    MutexLock lock(&mu_);
    stats_ = stats;
  }
  if (callbacks_.on_stats) callbacks_.on_stats(stats);
}

void EngineThread::CloseQueue() {
  std::deque<Command> left;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    left.swap(commands_);
  }
  for (const Command& command : left) command(nullptr);
  for (const Command& install : std::exchange(waiting_installs_, {})) install(nullptr);
  while (!scores_.empty()) EndScore(scores_.begin(), Stopped());
}

}  // namespace tandem::rollout
