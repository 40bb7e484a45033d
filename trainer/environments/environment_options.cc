#include "trainer/environments/environment_options.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "trainer/rewards/python/python_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, EnvironmentOptions& options) {
  binder.Text("python", &options.python,
              "class in Python with reset and step: FILE.py:CLASS or MODULE:CLASS "
              "(docs/environments.md)");
  binder.Shorthand("python");
  binder.OneOrMoreTexts("tools", &options.tools,
                        "functions in Python that the model may call: FILE.py:FUNCTION or "
                        "MODULE:FUNCTION, with type hints and a docstring");
  binder.Text("openenv", &options.openenv, "http://HOST:PORT of an OpenEnv server");
  binder.Text("verifiers", &options.verifiers,
              "id of an environment of the package verifiers, or FILE.py:load_environment");
  binder.TextMap("kwargs", &options.kwargs,
                 "arguments of the environment: a value that is JSON is read as JSON");
  binder.Integer("max_turns", &options.max_turns, {.min = 1, .max = 10000}, "turns",
                 "of the model, in one completion");
  binder.Integer("max_completion_tokens", &options.max_completion_tokens,
                 {.min = 0, .max = 2147483647}, "tokens",
                 "of a completion, all turns and what the environment says between them; 0: "
                 "max_turns x sampling.max_new_tokens, which is the limit of each turn");
  binder.Choice("turn_rewards", &options.turn_rewards,
                {{"sum", TurnRewards::kSum}, {"per_turn", TurnRewards::kPerTurn}},
                "rewards that come turn by turn: their sum is the completion's, or each belongs to "
                "its turn, as process rewards do to their steps");
  binder.Text(
      "interpreter", &options.interpreter,
      "program that runs it; empty: TANDEM_PYTHON, which the `tandem` of the Python package "
      "sets to its own, else python3 of the active environment (VIRTUAL_ENV), else of PATH");
  binder.Integer("workers", &options.workers, {.min = 1, .max = 1024}, "processes",
                 "that play beside each other, each many completions at once");
  binder.Number("step_timeout_seconds", &options.step_timeout_seconds,
                {.min = 0, .exclusive_min = true}, "s",
                "longest answer to a turn; then the completion is given up and the process starts "
                "over");
  binder.Integer("memory_limit_mib", &options.memory_limit_mib, {.min = 0}, "MiB",
                 "most memory of one process, with what it started, shared libraries not counted; "
                 "0: no limit");
}

int64_t LongestEpisode(const EnvironmentOptions& options, int64_t turn_tokens) {
  if (!HasEnvironment(options)) return turn_tokens;
  if (options.max_completion_tokens > 0) return options.max_completion_tokens;
  return options.max_turns * turn_tokens;
}

std::vector<std::string> EnvironmentFiles(const EnvironmentOptions& options) {
  std::vector<std::string> specs = options.tools;
  specs.push_back(options.python);
  specs.push_back(options.verifiers);
  std::vector<std::string> files;
  for (const std::string& spec : specs) {
    std::string file = PythonFileOf(spec);
    if (!file.empty() && std::ranges::find(files, file) == files.end()) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

absl::Status CheckOptions(const EnvironmentOptions& options) {
  std::vector<std::string> kinds;
  if (!options.python.empty()) kinds.push_back("python");
  if (!options.tools.empty()) kinds.push_back("tools");
  if (!options.openenv.empty()) kinds.push_back("openenv");
  if (!options.verifiers.empty()) kinds.push_back("verifiers");
  if (kinds.size() > 1) {
    return InvalidArgument("trainer.environment names ", absl::StrJoin(kinds, " and "),
                           ": one environment plays a completion, so name one");
  }
  const EnvironmentOptions usual;
  const bool sets_more = !options.kwargs.empty() || options.max_turns != usual.max_turns ||
                         options.max_completion_tokens != usual.max_completion_tokens ||
                         options.turn_rewards != usual.turn_rewards;
  if (kinds.empty() && sets_more) {
    return InvalidArgument(
        "trainer.environment has options and names no environment: name one in python, tools, "
        "openenv or verifiers");
  }
  std::vector<std::string> specs = options.tools;
  if (!options.python.empty()) specs.push_back(options.python);
  for (const std::string& spec : specs) {
    if (ParsePythonFunction(spec).ok()) continue;
    return InvalidArgument(
        "trainer.environment.", kinds[0], ": '", spec,
        "' names nothing in Python: want FILE.py:NAME or MODULE:NAME, such as ",
        options.tools.empty() ? "guess_number.py:GuessTheNumber" : "calculator.py:calculator",
        ", with NAME(size=3) for what a call returns");
  }
  const std::string& url = options.openenv;
  const bool is_url = url.starts_with("http://") || url.starts_with("https://") ||
                      url.starts_with("ws://") || url.starts_with("wss://");
  if (!url.empty() && !is_url) {
    return InvalidArgument("trainer.environment.openenv is '", url,
                           "': want the address of a server, such as http://127.0.0.1:8000");
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
