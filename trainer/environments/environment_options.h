// EnvironmentOptions: section trainer.environment of a run file: what answers a model between two
// turns. Used by environment_pool.h and whoever reads a run file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::trainer {

// What becomes of rewards that an environment gives turn by turn.
enum class TurnRewards {
  kSum,      // the completion's reward is their sum
  kPerTurn,  // each belongs to its turn, as process rewards belong to their steps
};

struct EnvironmentOptions {
  // What plays; at most one of these is given, none: completions are of one turn.
  std::string python;              // FILE.py:CLASS or MODULE:CLASS
  std::vector<std::string> tools;  // FILE.py:FUNCTION or MODULE:FUNCTION
  std::string openenv;             // http://HOST:PORT
  std::string verifiers;           // an id, or FILE.py:load_environment
  std::vector<std::pair<std::string, std::string>> kwargs;

  int64_t max_turns = 8;              // of a completion
  int64_t max_completion_tokens = 0;  // of a completion, given tokens included; 0: LongestEpisode
  TurnRewards turn_rewards = TurnRewards::kSum;
  std::string interpreter;           // empty: DefaultPython
  int64_t workers = 1;               // processes
  double step_timeout_seconds = 60;  // of one call of the environment
  int64_t memory_limit_mib = 0;      // of a process with what it started; 0: none
};
void BindOptions(OptionBinder& binder, EnvironmentOptions& options);

inline bool HasEnvironment(const EnvironmentOptions& options) {
  return !options.python.empty() || !options.tools.empty() || !options.openenv.empty() ||
         !options.verifiers.empty();
}

// The most tokens of a completion whose turns have at most `turn_tokens`, given ones included.
int64_t LongestEpisode(const EnvironmentOptions& options, int64_t turn_tokens);

// Whether the environment itself gives rewards: tools do not.
inline bool GivesRewards(const EnvironmentOptions& options) {
  return HasEnvironment(options) && options.tools.empty();
}

// The files of classes and functions, each once.
std::vector<std::string> EnvironmentFiles(const EnvironmentOptions& options);

// INVALID_ARGUMENT: two kinds at once; a class or a function that is not named as was expected; an
// address that is none.
absl::Status CheckOptions(const EnvironmentOptions& options);

}  // namespace tandem::trainer
