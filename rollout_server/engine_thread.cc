#include "rollout_server/engine_thread.h"

#include <pthread.h>

#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace tandem::rollout {
namespace {

absl::Status Stopped() { return absl::UnavailableError("the engine has stopped"); }

}  // namespace

EngineThread::EngineThread(std::unique_ptr<StepEngine> engine, SecondsClock clock)
    : engine_(std::move(engine)), heartbeat_(std::move(clock)) {}

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
  Post([this, shared](StepEngine* engine) {
    for (GroupRequest& group : *shared) {
      const GroupKey key = group.key;
      const absl::Status added = engine ? engine->Add(std::move(group)) : Stopped();
      if (!added.ok() && callbacks_.on_rejected) callbacks_.on_rejected(key, added);
    }
  });
}

void EngineThread::Abort(GroupKey key) {
  Post([key](StepEngine* engine) {
    if (engine) engine->Abort(key);
  });
}

void EngineThread::StopEarly(GroupKey key) {
  Post([this, key](StepEngine* engine) {
    if (!engine) return;
    absl::StatusOr<std::vector<EngineEvent>> events = engine->StopEarly(key);
    if (events.ok() && !events->empty()) {
      if (callbacks_.on_events) callbacks_.on_events(*std::move(events));
      return;
    }
    engine->Abort(key);
    if (callbacks_.on_rejected) {
      callbacks_.on_rejected(key, events.ok()
                                      ? absl::AbortedError("stopped early, with nothing drawn yet")
                                      : events.status());
    }
  });
}

void EngineThread::Score(std::vector<ScoreSequence> sequences, const ScoreOptions& options,
                         std::function<void(absl::StatusOr<ScoreResult>)> done) {
  if (waiting_scores_.fetch_add(1) >= kMaxWaitingScores) {
    waiting_scores_.fetch_sub(1);
    done(absl::ResourceExhaustedError("too many Score calls are waiting (limit 64)"));
    return;
  }
  auto shared = std::make_shared<std::vector<ScoreSequence>>(std::move(sequences));
  Post([this, shared, options, done = std::move(done)](StepEngine* engine) {
    waiting_scores_.fetch_sub(1);
    if (!engine) return done(Stopped());
    absl::StatusOr<std::vector<SequenceScore>> scored = engine->Score(*shared, options);
    if (!scored.ok()) return done(scored.status());
    done(ScoreResult{*std::move(scored), engine->live_version()});
  });
}

void EngineThread::SetPaused(bool paused, std::function<void(absl::Status)> done) {
  Post([this, paused, done = std::move(done)](StepEngine* engine) {
    absl::Status changed = engine ? absl::OkStatus() : Stopped();
    if (engine && paused && !waiting_installs_.empty()) {
      changed = absl::FailedPreconditionError(
          "a commit waits for the running groups to end (engine.in_flight is drain), which in a "
          "pause they never would: pause when it has ended");
    }
    if (changed.ok() && paused_.exchange(paused) && !paused && callbacks_.on_resumed) {
      callbacks_.on_resumed();
    }
    if (done) done(changed);
  });
}

void EngineThread::Pause(std::function<void(absl::Status)> done) {
  SetPaused(true, std::move(done));
}

void EngineThread::Resume(std::function<void(absl::Status)> done) {
  SetPaused(false, std::move(done));
}

absl::StatusOr<std::unique_ptr<StagedWeights>> EngineThread::Stage(
    std::vector<HostTensor> tensors) {
  return engine_->Stage(std::move(tensors));
}

absl::StatusOr<double> EngineThread::Install(std::unique_ptr<StagedWeights> staged,
                                             WeightVersion version) {
  auto shared = std::make_shared<std::unique_ptr<StagedWeights>>(std::move(staged));
  auto swapped = std::make_shared<std::promise<absl::StatusOr<double>>>();
  std::future<absl::StatusOr<double>> result = swapped->get_future();
  Command install = [this, shared, swapped, version](StepEngine* engine) {
    if (!engine) return swapped->set_value(Stopped());
    const double begin = MonotonicSeconds();
    const std::vector<GroupKey> ended = engine->Install(std::move(*shared), version);
    swapped->set_value(MonotonicSeconds() - begin);
    for (const GroupKey key : ended) {
      if (!callbacks_.on_rejected) continue;
      callbacks_.on_rejected(
          key, absl::AbortedError("new weights came (engine.in_flight is abort): ask again"));
    }
  };
  Post([this, swapped, install = std::move(install)](StepEngine* engine) {
    if (!engine || engine->in_flight() != InFlight::kDrain) return install(engine);
    if (paused_.load() && engine->Stats().num_groups_running > 0) {
      return swapped->set_value(absl::FailedPreconditionError(
          "groups run and the server is paused, so they would never end (engine.in_flight is "
          "drain): resume first"));
    }
    engine->HoldAdmissions(true);
    waiting_installs_.push_back(install);
  });
  return result.get();  // bounded: a step, the running groups or the engine's end answer it
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
    if (!paused_.load() && engine_->HasWork()) {
      absl::StatusOr<std::vector<EngineEvent>> events = engine_->Step();
      if (!events.ok()) {
        CloseQueue();
        if (callbacks_.on_failure) callbacks_.on_failure(events.status());
        return;
      }
      PublishStats();
      if (callbacks_.on_events && !events->empty()) callbacks_.on_events(*std::move(events));
    } else {
      PublishStats();
    }
  }
}

void EngineThread::InstallWhenDrained() {
  if (waiting_installs_.empty() || engine_->Stats().num_groups_running > 0) return;
  for (const Command& install : std::exchange(waiting_installs_, {})) install(engine_.get());
  engine_->HoldAdmissions(false);
}

bool EngineThread::WaitForWork(std::deque<Command>* commands) {
  const bool drained = !waiting_installs_.empty() && engine_->Stats().num_groups_running == 0;
  const bool can_step = drained || (!paused_.load() && engine_->HasWork());
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
}

}  // namespace tandem::rollout
