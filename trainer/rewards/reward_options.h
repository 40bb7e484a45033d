// RewardOptions: section `reward` of a run file, and the names of the components that
// reward.weights may have. Used by rewards.h and by whoever makes a RewardFunction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/options/options.h"
#include "trainer/rewards/answer_cache.h"
#include "trainer/rewards/external/grpc_reward.h"
#include "trainer/rewards/external/http_reward.h"
#include "trainer/rewards/external/subprocess_reward.h"
#include "trainer/rewards/judge/judge_options.h"
#include "trainer/rewards/model/model_options.h"
#include "trainer/rewards/python/python_options.h"

namespace tandem::trainer {

// How a completion that ended by length is rewarded.
enum class TruncatedPolicy { kKeep, kMask, kZero, kPenalise };

struct RewardOptions {
  std::vector<std::pair<std::string, double>> weights = {{"number_answer", 1.0}};
  bool weights_are_given = false;  // by whoever wrote the run file; see WeighPythonFunctions
  // Held-out components: measured on every completion and never trained on.
  std::vector<std::string> gold;
  double pass_threshold = 1.0;    // Reward::correct
  std::string regex;              // component regex: first group (or whole match) is the answer
  std::string format;             // component format: must match the whole text
  double length_soft_tokens = 0;  // component length_penalty: 0 up to here ...
  double length_hard_tokens = 0;  // ... falling linearly to -1 here
  double number_partial = 0.2;    // number_answer: the answer is among the numbers
  bool number_needs_stop = true;  // number_answer: full reward only if ended by a stop
  TruncatedPolicy truncated = TruncatedPolicy::kKeep;
  double truncated_penalty = 0.5;  // penalise: subtracted
  int64_t ngram_words = 3;         // components repetition and diversity
  // By component: its value is moved into these bounds before anything else.
  std::vector<std::pair<std::string, double>> cap_min, cap_max;
  std::vector<std::string> normalise;  // components whose values are normalised in each group
  SubprocessRewardOptions subprocess;
  HttpRewardOptions http;
  GrpcRewardOptions grpc;
  JudgeOptions judge;
  RewardModelOptions model;
  PythonRewardOptions python;
  AnswerCacheOptions cache;
};
void BindOptions(OptionBinder& binder, RewardOptions& options);

// Where functions in Python are named and no weights are given, each function counts 1, except those
// of gold, and nothing else does. For whoever has read a run file.
void WeighPythonFunctions(RewardOptions& options);

// What decides the value of a component.
enum class ComponentKind {
  kText,      // the completion alone
  kGroup,     // its text and those of the group
  kEpisode,   // the environment that played the completion
  kExternal,  // a program, a service, a judge or a reward model
};

// Its value is what the environment that played the completion gave (trainer.environment).
inline constexpr std::string_view kEnvironmentComponent = "environment";

// Its value is that of a function which comes with Tandem (python/tandem_rl/rewards/math.py).
inline constexpr std::string_view kMathComponent = "math";

struct ComponentName {
  std::string_view name;
  ComponentKind kind = ComponentKind::kText;
  bool judges_the_answer = true;  // it says whether a completion is correct
  bool is_bounded = true;         // its value is at most 1
};
// The components that Tandem has; functions in Python (options.python) come to them.
std::span<const ComponentName> ComponentNames();
// None for a name that is no component. The result views `name`.
std::optional<ComponentName> FindComponent(const RewardOptions& options, std::string_view name);

// The components that are computed: those with a weight, then those of gold.
std::vector<std::string> ComputedComponents(const RewardOptions& options);

// Components that say whether a completion is correct, with what each counts: of those with a
// weight; where none of them does, those of gold, which count 1; where none does either, `format`
// if it has a weight.
std::vector<std::pair<std::string, double>> Judges(const RewardOptions& options);

// Whether a weighted sum reaches `threshold`, up to rounding: 0.6 + 0.3 + 0.1 is less than 1.
bool Reaches(double sum, double threshold);

// Checks names and bounds. What a component needs is checked where it is made.
//   INVALID_ARGUMENT  no component or an unknown one (names those there are), in weights, gold, a
//                     cap or normalise; a component of gold that has a weight or is named twice; a
//                     cap_min above its cap_max; hard length not above soft; a file of the cache
//                     without a cache; errors of PythonFunctions; a function in Python that has
//                     the name of another component, or neither a weight nor a place in gold
absl::Status CheckRewardOptions(const RewardOptions& options);

// INVALID_ARGUMENT where no completion can reach pass_threshold. Names are those of components.
absl::Status CheckPassThreshold(const RewardOptions& options);

}  // namespace tandem::trainer
