// What the trainer and a process with functions in Python (python/tandem_rl/rewards/worker.py) say
// to each other, a JSON object a line:
//   -> {"functions":[{"name":"score","spec":"my_reward.py:score"}],"kwargs":{..},
//       "completions":"auto","row":{..}}              once; `row` is a line of the data, or null
//   <- {"ready":true}                                 or {"error":"..","traceback":".."}
//   -> {"function":0,"groups":[{"id":7,"prompt":"..","answer":"..","source":{..},"step":3,
//       "num_steps":100,"completions":[{"text":"..","ids":[..],"truncated":false}]}]}
//      A completion that an environment played has "messages", its turns and what answered them.
//   <- {"id":7,"rewards":[null,{"reward":1,"parts":{..},"steps":[..],"tokens":[..]},
//       {"error":"..","traceback":".."}],"seconds":0.1,"logged":{"name":[sum,count]},
//       "extra":{"column":["text",..]}}
// with one line for each group, in any order, and one reward for each completion, in order; null
// where the function has none. The form is private to a version of Tandem. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/rewards/external/reward_question.h"
#include "trainer/rewards/python/python_options.h"

namespace tandem::trainer {

// `row` is the JSON of a line of the data, from which the worker knows the columns; empty: unknown.
std::string PythonHello(const std::vector<PythonFunction>& functions,
                        const PythonRewardOptions& options, std::string_view row);

//   FAILED_PRECONDITION  the worker reports why it cannot load a function; `*traceback` is the whole
//   INVALID_ARGUMENT     it is no such line
absl::Status ReadPythonReady(std::string_view line, std::string* traceback);

// Completions of one group, as indices of questions, and the number of their line.
struct PythonGroup {
  int64_t id = 0;
  std::vector<size_t> indices;
};
std::string PythonRequest(std::span<const RewardQuestion> questions,
                          std::span<const PythonGroup> groups);

// What a worker says of one group.
struct PythonReply {
  std::vector<RewardAnswer> answers;    // ABORTED: the function raised, or gave no reward
  std::vector<std::string> tracebacks;  // of `answers`; empty where there is none
  double seconds = 0;                   // of the call
  std::map<std::string, std::pair<double, int64_t>> logged;  // sum and count of log_metric
};
//   INVALID_ARGUMENT  no such line, or of no open group
absl::StatusOr<std::pair<int64_t, PythonReply>> ReadPythonReply(
    std::string_view line, std::span<const RewardQuestion> questions,
    std::span<const PythonGroup> open);

}  // namespace tandem::trainer
