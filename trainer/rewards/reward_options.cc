#include "trainer/rewards/reward_options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// To add a component: a row here, its value in TextComponents::Value (text_components.cc), or, for
// one that asks somebody else, an Asker and a part in external_parts.cc; its own options in
// BindOptions. Then a row in docs/data_and_rewards.md and a test in tests/trainer/rewards.
constexpr ComponentName kComponents[] = {
    {"exact_match"},
    {"last_number"},
    {"any_number"},
    {"gsm8k"},
    {"regex"},
    {"format", ComponentKind::kText, false},
    {"length_penalty", ComponentKind::kText, false},
    {"number_answer"},
    {"repetition", ComponentKind::kText, false},
    {"diversity", ComponentKind::kGroup, false},
    {"subprocess", ComponentKind::kExternal, true, false},
    {"http", ComponentKind::kExternal, true, false},
    {"grpc", ComponentKind::kExternal, true, false},
    {"judge", ComponentKind::kExternal},
    {"model", ComponentKind::kExternal, false, false},
    {kMathComponent, ComponentKind::kExternal},
    {kEnvironmentComponent, ComponentKind::kEpisode, true, false},
};

// Sums of weights are compared up to this share.
constexpr double kThresholdRounding = 1e-9;

std::string AllNames() {
  return absl::StrJoin(kComponents, ", ", [](std::string* out, const ComponentName& component) {
    out->append(component.name);
  });
}

absl::Status CheckName(const RewardOptions& options, const std::string& option,
                       const std::string& name) {
  if (FindComponent(options, name).has_value()) return absl::OkStatus();
  return InvalidArgument("reward.", option, ": no component '", name, "'; there are ", AllNames(),
                         ", and the functions of reward.python");
}

void NameOnly(std::string* out, const std::pair<std::string, double>& judge) {
  out->append(judge.first);
}

absl::Status CheckGold(const RewardOptions& options) {
  for (const std::string& name : options.gold) {
    TANDEM_RETURN_IF_ERROR(CheckName(options, "gold", name));
    for (const auto& [trained, weight] : options.weights) {
      if (name != trained) continue;
      return InvalidArgument("reward.gold names ", name, ", which reward.weights trains on with ",
                             weight,
                             ": a held-out reward has no weight; remove it from one of both");
    }
    if (std::ranges::count(options.gold, name) > 1) {
      return InvalidArgument("reward.gold names ", name, " twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPassThreshold(const RewardOptions& options) {
  const auto judges = Judges(options);
  double most = 0;
  for (const auto& [name, weight] : judges) {
    if (!FindComponent(options, name)->is_bounded)
      return absl::OkStatus();  // its rewards have no bound
    most += std::max(weight, 0.0);
  }
  if (judges.empty() || Reaches(most, options.pass_threshold)) return absl::OkStatus();
  return InvalidArgument(
      "reward.pass_threshold is ", options.pass_threshold, ", and the components that judge the ",
      "answer (", absl::StrJoin(judges, ", ", NameOnly), ") add up to ", most,
      " at most: no completion could count as correct; lower the threshold or raise a weight");
}

namespace {

absl::Status CheckCaps(const RewardOptions& options) {
  for (const auto& [name, low] : options.cap_min) {
    TANDEM_RETURN_IF_ERROR(CheckName(options, "cap_min", name));
    for (const auto& [other, high] : options.cap_max) {
      if (name != other || low <= high) continue;
      return InvalidArgument("reward.cap_min of ", name, " is ", low, ", above its cap_max ", high);
    }
  }
  for (const auto& [name, high] : options.cap_max) {
    TANDEM_RETURN_IF_ERROR(CheckName(options, "cap_max", name));
  }
  for (const std::string& name : options.normalise) {
    TANDEM_RETURN_IF_ERROR(CheckName(options, "normalise", name));
  }
  return absl::OkStatus();
}

absl::Status CheckPython(const RewardOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const auto functions, PythonFunctions(options.python));
  const std::vector<std::string> computed = ComputedComponents(options);
  for (const PythonFunction& function : functions) {
    const std::string& name = function.name;
    if (std::ranges::find(kComponents, name, &ComponentName::name) != std::end(kComponents)) {
      return InvalidArgument("reward.python.functions: a component of Tandem is called ", name,
                             " too: give the function another name, as in my_", name, "=",
                             function.spec);
    }
    if (std::ranges::find(computed, name) != computed.end()) continue;
    return InvalidArgument("reward.python.functions: ", name,
                           " has no weight: name it in reward.weights, or in reward.gold to "
                           "measure it and not train on it");
  }
  return absl::OkStatus();
}

void BindShaping(OptionBinder& binder, RewardOptions& options) {
  binder.Choice("truncated", &options.truncated,
                {{"keep", TruncatedPolicy::kKeep},
                 {"mask", TruncatedPolicy::kMask},
                 {"zero", TruncatedPolicy::kZero},
                 {"penalise", TruncatedPolicy::kPenalise}},
                "completions that ended by length: score as others, do not train on them, reward "
                "0, or subtract truncated_penalty");
  binder.Number("truncated_penalty", &options.truncated_penalty, {.min = 0}, "",
                "subtracted from the reward of truncated completions (penalise)");
  binder.Integer("ngram_words", &options.ngram_words, {.min = 1, .max = 64}, "words",
                 "components repetition and diversity: they count runs of so many words");
  binder.NumberMap("cap_min", &options.cap_min,
                   "component: a value below this counts as this, before weights");
  binder.NumberMap("cap_max", &options.cap_max,
                   "component: a value above this counts as this, before weights");
  binder.TextList("normalise", &options.normalise,
                  "components that count as (value - mean) / standard deviation of their group, "
                  "after the caps, before weights");
}

}  // namespace

std::span<const ComponentName> ComponentNames() { return kComponents; }

std::optional<ComponentName> FindComponent(const RewardOptions& options, std::string_view name) {
  const auto* const found = std::ranges::find(kComponents, name, &ComponentName::name);
  if (found != std::end(kComponents)) return *found;
  if (!HasPythonFunction(options.python, name)) return std::nullopt;
  const bool shapes =
      std::ranges::find(options.python.shaping, name) != options.python.shaping.end();
  return ComponentName{name, ComponentKind::kExternal, /*judges_the_answer=*/!shapes,
                       /*is_bounded=*/false};
}

void WeighPythonFunctions(RewardOptions& options) {
  const auto functions = PythonFunctions(options.python);
  if (options.weights_are_given || !functions.ok() || functions->empty()) return;
  options.weights.clear();
  for (const PythonFunction& function : *functions) {
    const bool is_gold = std::ranges::find(options.gold, function.name) != options.gold.end();
    if (!is_gold) options.weights.emplace_back(function.name, 1.0);
  }
  options.weights_are_given = true;
}

std::vector<std::string> ComputedComponents(const RewardOptions& options) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : options.weights) names.push_back(name);
  names.insert(names.end(), options.gold.begin(), options.gold.end());
  return names;
}

std::vector<std::pair<std::string, double>> Judges(const RewardOptions& options) {
  std::vector<std::pair<std::string, double>> judges, held_out, shapes;
  for (const auto& [name, weight] : options.weights) {
    if (FindComponent(options, name)->judges_the_answer) judges.emplace_back(name, weight);
    if (name == "format") shapes.emplace_back(name, weight);
  }
  for (const std::string& name : options.gold) {
    if (FindComponent(options, name)->judges_the_answer) held_out.emplace_back(name, 1);
  }
  if (!judges.empty()) return judges;
  return held_out.empty() ? shapes : held_out;
}

bool Reaches(double sum, double threshold) {
  return sum >= threshold - kThresholdRounding * std::abs(threshold);
}

absl::Status CheckRewardOptions(const RewardOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckPython(options));
  if (options.weights.empty()) {
    return InvalidArgument("reward.weights is empty: name at least one component");
  }
  for (const auto& [name, weight] : options.weights) {
    TANDEM_RETURN_IF_ERROR(CheckName(options, "weights", name));
  }
  TANDEM_RETURN_IF_ERROR(CheckGold(options));
  for (const std::string& name : ComputedComponents(options)) {
    if (name == "length_penalty" && options.length_hard_tokens <= options.length_soft_tokens) {
      return InvalidArgument("reward.length_hard_tokens must be above reward.length_soft_tokens");
    }
  }
  if (!options.cache.file.empty() && options.cache.entries == 0) {
    return InvalidArgument("reward.cache.file needs reward.cache.entries above 0");
  }
  return CheckCaps(options);
}

void BindOptions(OptionBinder& binder, RewardOptions& options) {
  binder.NumberMap("weights", &options.weights,
                   "component: weight of the sum; components: " + AllNames() +
                       ", and functions of reward.python, each of which counts 1 without weights",
                   &options.weights_are_given);
  binder.TextList("gold", &options.gold,
                  "held-out components: computed for every completion, shown as reward/gold (their "
                  "sum) and reward/part/NAME, and never trained on");
  binder.Number(
      "pass_threshold", &options.pass_threshold, {}, "",
      "a completion counts as correct (pass@k, evaluation) when the weighted sum of the "
      "components that judge the answer, all but format, length_penalty, repetition, "
      "diversity and model, is at least this; where none of them has a weight, the sum of "
      "those of gold");
  binder.Text("regex", &options.regex,
              "component regex (RE2): its first group, or the whole match, must equal the answer");
  binder.Text("format", &options.format, "component format (RE2): must match the whole text");
  binder.Number("length_soft_tokens", &options.length_soft_tokens, {.min = 0}, "tokens",
                "component length_penalty: no penalty up to this length");
  binder.Number("length_hard_tokens", &options.length_hard_tokens, {.min = 0}, "tokens",
                "component length_penalty: -1 from this length on");
  binder.Number("number_partial", &options.number_partial, {}, "",
                "component number_answer: value when the answer is among the numbers");
  binder.Flag("number_needs_stop", &options.number_needs_stop,
              "component number_answer: 1 only for completions that ended by themselves");
  BindShaping(binder, options);
  binder.Section("subprocess", "component subprocess", options.subprocess);
  binder.Section("http", "component http", options.http);
  binder.Section("grpc", "component grpc", options.grpc);
  binder.Section("judge", "component judge", options.judge);
  binder.Section("model", "component model", options.model);
  binder.Section("python",
                 "functions in Python: `python: my_reward.py:score` for the functions alone",
                 options.python);
  binder.Section("cache", "answers of external components that are kept", options.cache);
}

}  // namespace tandem::trainer
