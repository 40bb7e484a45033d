#include "trainer/rewards/reward_queue.h"

#include <deque>
#include <utility>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {

struct RewardQueue::State {
  struct Finished {
    std::shared_ptr<const HeldGroup> group;
    ExternalAnswers answers;
    Done done;
  };

  explicit State(std::function<void()> wake_up) : wake(std::move(wake_up)) {}

  void Put(Finished group, double seconds, RewardTally* tally) {
    MutexLock lock(&mu);
    if (cancelled) return;
    tally->Update([&](RewardNumbers& numbers) { numbers.latencies.push_back(seconds); });
    finished.push_back(std::move(group));
    changed.NotifyAll();
    if (wake) wake();  // under the lock, so that none comes after Cancel
  }

  const std::function<void()> wake;
  Mutex mu;
  CondVar changed;
  bool cancelled ABSL_GUARDED_BY(mu) = false;
  int64_t num_asked ABSL_GUARDED_BY(mu) = 0;  // and not delivered
  std::deque<Finished> finished ABSL_GUARDED_BY(mu);
};

RewardQueue::RewardQueue(RewardFunction* rewards, std::function<void()> wake)
    : rewards_(rewards), state_(std::make_shared<State>(std::move(wake))) {}

RewardQueue::~RewardQueue() { Cancel(); }

absl::Status RewardQueue::Submit(const std::vector<RewardInput>& inputs, Done done) {
  if (!rewards_->is_external()) return done(rewards_->Score(inputs));
  {
    MutexLock lock(&state_->mu);
    ++state_->num_asked;
  }
  auto group = std::make_shared<const HeldGroup>(inputs);
  const double start = MonotonicSeconds();
  rewards_->Ask(group, [state = state_, group, start, tally = rewards_->tally(),
                        done = std::move(done)](ExternalAnswers answers) {
    state->Put({group, std::move(answers), done}, MonotonicSeconds() - start, tally);
  });
  return absl::OkStatus();
}

absl::Status RewardQueue::Deliver() {
  for (;;) {
    State::Finished next;
    {
      MutexLock lock(&state_->mu);
      if (state_->finished.empty()) return absl::OkStatus();
      next = std::move(state_->finished.front());
      state_->finished.pop_front();
      --state_->num_asked;
    }
    TANDEM_RETURN_IF_ERROR(next.done(rewards_->Combine(next.group->inputs(), next.answers)));
  }
}

void RewardQueue::WaitFor(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&state_->mu);
  while (state_->finished.empty() && state_->changed.WaitUntil(&state_->mu, until)) {
  }
}

int64_t RewardQueue::num_open() const {
  MutexLock lock(&state_->mu);
  return state_->num_asked;
}

void RewardQueue::Cancel() {
  {
    MutexLock lock(&state_->mu);
    state_->cancelled = true;
    state_->finished.clear();
    state_->num_asked = 0;
  }
  rewards_->Cancel();
}

RewardNumbers RewardQueue::TakeNumbers() {
  return rewards_->is_external() ? rewards_->tally()->TakeNumbers() : RewardNumbers();
}

double RewardQueue::unanswered_until() const {
  return rewards_->is_external() ? rewards_->tally()->unanswered_until() : 0;
}

std::vector<RewardEvent> RewardQueue::TakeEvents() {
  return rewards_->is_external() ? rewards_->tally()->TakeEvents() : std::vector<RewardEvent>();
}

}  // namespace tandem::trainer
