// PythonRewardOptions: section reward.python of a run file: functions of the user in Python that
// are components of the reward. Used by reward_options.h and python_reward.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "trainer/rewards/external/question_pool.h"

namespace tandem::trainer {

// Whether functions get completions as text or as messages, [{"role": "assistant", "content": ..}].
enum class CompletionForm {
  kAuto,  // messages where the prompt of the data's line is messages
  kText,
  kMessages,
};

struct PythonRewardOptions {
  std::vector<std::string> functions;  // as ParsePythonFunction reads them
  std::vector<std::string> shaping;    // names of functions that do not judge the answer
  std::vector<std::pair<std::string, std::string>> kwargs;  // argument, or function.argument: value
  CompletionForm completions = CompletionForm::kAuto;
  std::string interpreter;       // empty: DefaultPython
  double timeout_seconds = 60;   // of a call, which is about one group
  int64_t memory_limit_mib = 0;  // of a worker with what it started; 0: none
  PoolOptions pool = {.workers = 1, .batch_size = 64, .whole_groups = true};
};
void BindOptions(OptionBinder& binder, PythonRewardOptions& options);

// A function and the name of its component.
struct PythonFunction {
  std::string name;  // "score"
  std::string spec;  // "my_reward.py:score"
};

// Reads "my_reward.py:score", "package.module:name", "trl.rewards:make(size=3)", where what a call
// returns is the function, and "NAME=" before any of them for another name of the component.
//   INVALID_ARGUMENT  it is none of these (what was expected)
absl::StatusOr<PythonFunction> ParsePythonFunction(std::string_view text);

// The functions that options name, in order.
//   INVALID_ARGUMENT  as ParsePythonFunction; a name twice; `shaping` has a name that is none
absl::StatusOr<std::vector<PythonFunction>> PythonFunctions(const PythonRewardOptions& options);

// The file of "my_reward.py:score", or of what ParsePythonFunction reads; empty for a module.
std::string PythonFileOf(std::string_view text);

// The files that functions are in, each once; modules have none.
std::vector<std::string> PythonFiles(const PythonRewardOptions& options);

// Whether one of the functions has this name. Texts that name no function have none.
bool HasPythonFunction(const PythonRewardOptions& options, std::string_view name);

}  // namespace tandem::trainer
