#include "trainer/rewards/python/python_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

constexpr char kWant[] =
    "want FILE.py:NAME or MODULE:NAME, such as my_reward.py:score or trl.rewards:accuracy_reward, "
    "with NAME(size=3) for what a call returns and LABEL= before it for another name of the "
    "component";

bool IsIdentifier(std::string_view text) {
  const auto is_part = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  return !text.empty() && !absl::ascii_isdigit(text[0]) && std::ranges::all_of(text, is_part);
}

// The attribute that stands before a call, or alone: "rubric.score(2)" is rubric.score.
std::string_view Attribute(std::string_view text) { return text.substr(0, text.find('(')); }

}  // namespace

void BindOptions(OptionBinder& binder, PythonRewardOptions& options) {
  binder.OneOrMoreTexts("functions", &options.functions,
                        "functions in Python, each a component with its name, that are called as "
                        "TRL calls reward functions: FILE.py:NAME or MODULE:NAME, NAME(size=3) for "
                        "what a call returns, LABEL= before it for another name "
                        "(docs/rewards_in_python.md)");
  binder.Shorthand("functions");
  binder.OneOrMoreTexts("shaping", &options.shaping,
                        "names of functions that do not judge the answer, as format does not: a "
                        "completion counts as correct without them");
  binder.TextMap("kwargs", &options.kwargs,
                 "arguments of the functions beside those of the data, as ARGUMENT or "
                 "FUNCTION.ARGUMENT: value, which is read as JSON where it is JSON");
  binder.Choice("completions", &options.completions,
                {{"auto", CompletionForm::kAuto},
                 {"text", CompletionForm::kText},
                 {"messages", CompletionForm::kMessages}},
                "what functions get: messages where the prompt of the data's line is messages, as "
                "TRL does, or always text, or always messages");
  binder.Text(
      "interpreter", &options.interpreter,
      "program that runs them; empty: TANDEM_PYTHON, which the `tandem` of the Python package "
      "sets to its own, else python3 of the active environment (VIRTUAL_ENV), else of PATH");
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "longest call, which is about the completions of one group; then the process, with "
                "what it started, is killed");
  binder.Integer("memory_limit_mib", &options.memory_limit_mib, {.min = 0}, "MiB",
                 "most memory of one process, with what it started, shared libraries not counted; "
                 "0: no limit");
  binder.Integer("workers", &options.pool.workers, {.min = 1, .max = 1024}, "processes",
                 "that run beside each other, started when there is work for them");
  binder.Integer("batch_size", &options.pool.batch_size, {.min = 1, .max = 65536}, "completions",
                 "that a process is given at a time, always those of whole groups");
}

absl::StatusOr<PythonFunction> ParsePythonFunction(std::string_view text) {
  PythonFunction function;
  const absl::string_view stripped =
      absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  std::string_view spec(stripped.data(), stripped.size());
  if (const size_t equals = spec.find('=');
      IsIdentifier(spec.substr(0, equals)) && equals != std::string_view::npos) {
    function.name = spec.substr(0, equals);
    spec.remove_prefix(equals + 1);
  }
  function.spec = spec;
  const size_t call = std::min(spec.find('('), spec.size());
  const size_t colon = spec.substr(0, call).rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return InvalidArgument("reward.python.functions: '", std::string(text), "' names no function; ",
                           kWant);
  }
  const std::string_view attribute = Attribute(spec.substr(colon + 1));
  const std::string_view name = attribute.substr(attribute.rfind('.') + 1);
  if (!IsIdentifier(name) || (call < spec.size() && spec.back() != ')')) {
    return InvalidArgument("reward.python.functions: '", std::string(text), "': '",
                           std::string(spec.substr(colon + 1)), "' is no name in Python; ", kWant);
  }
  if (function.name.empty()) function.name = name;
  return function;
}

absl::StatusOr<std::vector<PythonFunction>> PythonFunctions(const PythonRewardOptions& options) {
  std::vector<PythonFunction> functions;
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(functions, [&](const auto& one) { return one.name == name; });
  };
  for (const std::string& text : options.functions) {
    TANDEM_ASSIGN_OR_RETURN(PythonFunction function, ParsePythonFunction(text));
    if (has(function.name)) {
      return InvalidArgument("reward.python.functions: two functions are called ", function.name,
                             ": give one another name, as in LABEL=", function.spec);
    }
    functions.push_back(std::move(function));
  }
  for (const std::string& name : options.shaping) {
    if (has(name)) continue;
    return InvalidArgument(
        "reward.python.shaping: no function of reward.python.functions is "
        "called ",
        name);
  }
  return functions;
}

std::string PythonFileOf(std::string_view text) {
  const auto function = ParsePythonFunction(text);
  if (!function.ok()) return "";
  const std::string& spec = function->spec;
  std::string place = spec.substr(0, spec.substr(0, spec.find('(')).rfind(':'));
  return place.ends_with(".py") ? place : "";
}

std::vector<std::string> PythonFiles(const PythonRewardOptions& options) {
  std::vector<std::string> files;
  for (const std::string& text : options.functions) {
    std::string file = PythonFileOf(text);
    if (!file.empty() && std::ranges::find(files, file) == files.end()) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

bool HasPythonFunction(const PythonRewardOptions& options, std::string_view name) {
  return std::ranges::any_of(options.functions, [&](const std::string& text) {
    const auto function = ParsePythonFunction(text);
    return function.ok() && function->name == name;
  });
}

}  // namespace tandem::trainer
