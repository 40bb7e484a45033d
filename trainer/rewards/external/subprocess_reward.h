// SubprocessReward: a program of the user that scores completions, a JSON line in and a line out
// for each, in any order:
//   -> {"id":7,"prompt":"..","completion":"..","answer":"..","source":{..},"truncated":false}
//   <- {"id":7,"reward":0.5}   or  {"id":7,"reward":0.5,"steps":[{"end":4,"reward":1},..]}
//                              or  {"id":7,"error":"why not"}
// Started on first use, its stderr is the trainer's. A crash, a time-out or a line that is no such
// answer restarts the program, and what was open is asked once more, one by one: a completion that
// breaks the program takes no other with it. A reward that is not finite and steps that do not fit
// are treated likewise; an error that the program reports is its answer. Used by external_parts.cc.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/options/options.h"
#include "common/process/line_process.h"
#include "trainer/rewards/external/question_pool.h"

namespace tandem::trainer {

struct SubprocessRewardOptions {
  std::vector<std::string> command;  // program and arguments; no shell
  double timeout_seconds = 10;       // per completion
  PoolOptions pool;
  bool cached = false;  // the same completion always has the same reward
};
void BindOptions(OptionBinder& binder, SubprocessRewardOptions& options);

// Use from one thread, which blocks SIGPIPE.
class SubprocessReward : public Asker {
 public:
  // `end` must outlive it.
  SubprocessReward(const SubprocessRewardOptions& options, EndSign* end);
  SubprocessReward(const SubprocessReward&) = delete;
  SubprocessReward& operator=(const SubprocessReward&) = delete;

  // Errors of a single answer:
  //   UNAVAILABLE        the program cannot be started, or ended
  //   DEADLINE_EXCEEDED  no answer within timeout_seconds of the one before
  //   INVALID_ARGUMENT   a line that is not a JSON object with an id that was asked; errors of
  //                      ParseAnswer
  //   ABORTED            the program's own error
  //   CANCELLED          `end` was given
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override;

 private:
  using Open = std::map<int64_t, size_t>;  // id of a line that was written, index of the question

  // Asks the questions at `indices` together, and fills their answers. An error is that of the
  // program as a whole; answers that came before it stand.
  absl::Status AskTogether(std::span<const RewardQuestion> questions,
                           const std::vector<size_t>& indices, std::vector<RewardAnswer>* answers);
  absl::Status Exchange(std::string lines, std::span<const RewardQuestion> questions, Open* open,
                        std::vector<RewardAnswer>* answers);
  absl::Status TakeLine(const std::string& line, std::span<const RewardQuestion> questions,
                        Open* open, std::vector<RewardAnswer>* answers);

  const SubprocessRewardOptions options_;
  LineProcess process_;
  int64_t next_id_ = 0;
};

}  // namespace tandem::trainer
