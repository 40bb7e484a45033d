// EnvironmentWorker: a process that plays episodes of an environment, many beside each other, and the
// thread that speaks with it. Used by environment_pool.h, and by `tandem environment` alone.
//
// The idea: an episode is a function of its start and of the model's turns, so it can be played
// again. A process that ends, or that is killed since it takes too long or too much memory, loses
// nothing but what it was at: the other episodes begin anew in the next process, with the turns that
// they had, when their next turn comes. Of several that were being played when it ended by itself,
// each is then played alone, so that only the one that ends a process fails; and that one is tried
// twice, since a process may be ended from outside.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/process/line_process.h"
#include "trainer/environments/environment_messages.h"
#include "trainer/environments/environment_options.h"

namespace tandem::trainer {

// How long a process may take to close the episodes that are open when a run ends.
inline constexpr double kCloseSeconds = 10;

// Thread-safe. The thread starts with the first episode.
class EnvironmentWorker {
 public:
  // The reply to a turn. Errors:
  //   ABORTED             the environment raised, or did not repeat itself in another process
  //   UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED  the process ended over this episode, or
  //                       was killed for it (says why)
  //   FAILED_PRECONDITION the process cannot play (ReadEnvironmentReady)
  //   CANCELLED           Cancel was called
  using Done = std::function<void(absl::StatusOr<EnvironmentReply>)>;
  // Told of each failure of an episode or of the process, on the worker's thread; `traceback` may be
  // empty.
  using Raised = std::function<void(const absl::Status& failure, const std::string& traceback)>;

  // `options` must outlive it.
  EnvironmentWorker(const EnvironmentOptions& options, std::string chat_template, Raised raised);
  ~EnvironmentWorker();  // Cancel, then joins: waits for the process, for kCloseSeconds at most
  EnvironmentWorker(const EnvironmentWorker&) = delete;
  EnvironmentWorker& operator=(const EnvironmentWorker&) = delete;

  // Begins an episode: `opened`, which may be empty, gets the reply to it, turn 0. Its number is not
  // that of an episode that is open.
  void Open(int64_t episode, EpisodeStart start, Done opened = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // The model's next turn. `done` is called once, on the worker's thread or on that of Cancel, unless
  // the episode is closed before. After an error the episode is over.
  void Step(int64_t episode, TurnText turn, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // What answered `turn`, the last one, cannot be given to the model: the episode is over after it,
  // and the reply says what it is worth. `done` as that of Step.
  void Finish(int64_t episode, int32_t turn, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  void Close(int64_t episode) ABSL_LOCKS_EXCLUDED(mu_);

  // Answers what is open with CANCELLED, and what comes later at once. Does not wait: the process is
  // told to close its episodes, and is waited for by the destructor.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct OpenEpisode {
    enum class State {
      kAway,     // in no process
      kOpening,  // the process owes the reply to its opening
      kIdle,
      kPlaying,  // it owes that to `step`
    };
    EpisodeStart start;
    Done opened;  // empty once called
    std::vector<AnsweredTurn> history;
    State state = State::kAway;
    std::optional<TurnText> step;  // that it is to be told of
    bool finishes = false;         // `step` was answered, and nothing follows it
    Done done;
    double deadline = 0;   // MonotonicSeconds, while the process owes a reply
    absl::Status failure;  // it is over, and nobody has been told yet
    int num_ends = 0;      // of processes that ended by themselves, while it was at work
    bool is_at_work() const { return state == State::kOpening || state == State::kPlaying; }
    bool has_work() const;  // for the thread
  };
  // Calls of Done that are made without the lock.
  using Calls = std::vector<std::function<void()>>;

  void Ask(int64_t episode, TurnText turn, bool finishes, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void EndProcess();
  bool WaitForWork() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StartProcess() ABSL_LOCKS_EXCLUDED(mu_);
  // Appends to `unsent_` what episodes are to be told now, and returns when the first reply is due.
  double Send() ABSL_LOCKS_EXCLUDED(mu_);
  void SendTo(int64_t number, OpenEpisode& episode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(const std::string& line) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeReply(EnvironmentReply reply, OpenEpisode& episode, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The process is gone, or goes now.
  void Lose(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // The episode is over: whoever waits for it is told, or who asks next.
  void Fail(int64_t number, const absl::Status& why, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailAll(const absl::Status& why, Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is said of a process that was killed for a limit; `why` of another.
  absl::Status Limit(const absl::Status& why) const;

  const EnvironmentOptions& options_;
  const std::string hello_;
  const Raised raised_;
  EndSign end_;
  LineProcess process_;  // used by the thread; but Wake
  std::string unsent_;   // likewise

  Mutex mu_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool is_loading_ ABSL_GUARDED_BY(mu_) = false;  // the process
  std::map<int64_t, OpenEpisode> episodes_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> closed_ ABSL_GUARDED_BY(mu_);  // that the process is not told of yet
  // Episodes of which one may have ended the last process: they are played one by one, the first
  // now.
  std::deque<int64_t> suspects_ ABSL_GUARDED_BY(mu_);
  std::optional<std::thread> thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::trainer
