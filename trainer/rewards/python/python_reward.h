// PythonReward: functions of the user in Python, as components of the reward. A worker of the pool
// keeps one process of python/tandem_rl/rewards/worker.py, which has loaded all functions, and asks
// it about whole groups: one call of one function is about the completions of one group, so that a
// reward does not depend on what else was asked. A process that crashes, takes too long or too much
// memory is killed with what it started, and what was open is asked once more, each group alone and
// then each completion in a call of its own: one that breaks a function takes no other with it. What a function raises is its
// answer. Used by external_parts.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/process/line_process.h"
#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external/reward_tally.h"
#include "trainer/rewards/python/python_messages.h"
#include "trainer/rewards/python/python_options.h"

namespace tandem::trainer {

// Starts a process, loads all functions, and checks that they can be called with the columns of
// `row`, the JSON of a line of the data (empty: only that they are there). Waits for that.
//   UNAVAILABLE          no interpreter, or the process ended (named)
//   FAILED_PRECONDITION  a module that cannot be imported or has a fault, no such function, one that
//                        cannot be called so; the message has the place and the traceback
absl::Status CheckPythonFunctions(const std::vector<PythonFunction>& functions,
                                  const PythonRewardOptions& options, std::string_view row);

// Use from one thread, which blocks SIGPIPE.
class PythonReward : public Asker {
 public:
  // RewardQuestion::scorer is the position in `functions`. All but the first and the last argument
  // are used until this ends; `tally` gets times, metrics and what was raised.
  PythonReward(std::vector<PythonFunction> functions, const PythonRewardOptions& options,
               RewardTally* tally, EndSign* end);

  // Errors of a single answer:
  //   ABORTED              the function raised or gave no reward; says what and where
  //   UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED  the process, as LineProcess::NextLine
  //   FAILED_PRECONDITION  as CheckPythonFunctions
  //   CANCELLED            `end` was given
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override;

 private:
  absl::Status Start();
  // Asks about `groups` together, and fills their answers. An error is that of the process; what it
  // answered before stands.
  absl::Status AskTogether(std::span<const RewardQuestion> questions,
                           std::vector<PythonGroup> groups, std::vector<RewardAnswer>* answers);
  absl::Status Exchange(std::span<const RewardQuestion> questions, std::vector<PythonGroup>* open,
                        std::vector<RewardAnswer>* answers);
  // After a failure of the process: each open group alone, unless that is what broke a limit, and
  // then each open completion alone.
  void AskOnceMore(std::span<const RewardQuestion> questions,
                   const std::vector<PythonGroup>& groups, std::vector<RewardAnswer>* answers);
  void Take(PythonReply reply, const PythonGroup& group, const std::string& function,
            std::vector<RewardAnswer>* answers);

  const std::vector<PythonFunction> functions_;
  const PythonRewardOptions& options_;
  RewardTally* const tally_;
  LineProcess process_;
  int64_t next_id_ = 0;
};

}  // namespace tandem::trainer
