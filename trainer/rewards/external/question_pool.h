// QuestionPool: worker threads that ask an external scorer, each through an Asker of its own (a
// program, a connection). Questions of all groups wait in one line; a worker takes some of them at
// a time. Used by external_parts.cc, one pool per component.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "trainer/rewards/external/reward_question.h"

namespace tandem::trainer {

// How one worker asks. Used by one thread.
class Asker {
 public:
  virtual ~Asker() = default;
  // One answer per question, in order. Returns soon with CANCELLED for those that are open when the
  // sign it was made with is given.
  virtual std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) = 0;
};

struct PoolOptions {
  int64_t workers = 1;     // threads, and so questions or batches under way at once
  int64_t batch_size = 1;  // most questions a worker takes at a time
  // A worker takes all questions of a group that it takes one of, over batch_size if need be: what
  // it is told of a completion depends on the completions of its group, and on no others.
  bool whole_groups = false;
};

// Thread-safe. Threads start when there is something to ask, up to `workers`, and end with the
// pool. They block SIGPIPE, so that a peer that died is an errno of the write.
class QuestionPool {
 public:
  // Called on the worker's thread, which keeps the asker; `end` outlives it.
  using MakeAsker = std::function<std::unique_ptr<Asker>(EndSign* end)>;
  // Called once, on a worker's thread or, for what is cancelled, on that of Cancel.
  using Done = std::function<void(RewardAnswer)>;
  struct Asked {
    RewardQuestion question;
    Done done;
  };

  QuestionPool(const PoolOptions& options, MakeAsker make);
  ~QuestionPool();  // Cancel, then joins
  QuestionPool(const QuestionPool&) = delete;
  QuestionPool& operator=(const QuestionPool&) = delete;

  // Puts questions into the line. A batch is an equal share of the line among the workers that are
  // free, if that is less than batch_size, so that a short line is asked at once.
  void Submit(std::vector<Asked> asked) ABSL_LOCKS_EXCLUDED(mu_);

  // Answers what waits with CANCELLED, tells askers to end, and refuses what comes later. Does not
  // wait for the askers.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for questions, after those that this worker took before; none: the pool ends.
  std::vector<Asked> Take(bool is_first) ABSL_LOCKS_EXCLUDED(mu_);

  const PoolOptions options_;
  const MakeAsker make_;
  EndSign end_;

  Mutex mu_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Asked> line_ ABSL_GUARDED_BY(mu_);
  int64_t num_busy_ ABSL_GUARDED_BY(mu_) = 0;  // workers that took questions
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::trainer
