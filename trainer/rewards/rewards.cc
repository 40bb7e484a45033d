#include "trainer/rewards/rewards.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

// To add a built-in reward: its name here, a branch in RewardFunction::Component (above
// AnswerNumber there, unless every answer is a number), its own options in BindOptions and Create,
// and, where it does not say whether the answer is correct, a name in JudgesTheAnswer. Then a row
// in docs/data_and_rewards.md and a test in tests/trainer/rewards.
constexpr const char* kComponents[] = {"exact_match",    "last_number",   "any_number",
                                       "gsm8k",          "regex",         "format",
                                       "length_penalty", "number_answer", "subprocess"};

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(text.front())) text.remove_prefix(1);
  while (!text.empty() && absl::ascii_isspace(text.back())) text.remove_suffix(1);
  return text;
}

absl::StatusOr<WrittenNumber> AnswerNumber(std::string_view answer) {
  const absl::StatusOr<WrittenNumber> number = Gsm8kNumber(answer);
  if (number.ok() && !std::isnan(number->value)) return number;
  return InvalidArgument("answer '", answer.substr(0, 80), "' holds no number",
                         number.ok() ? " as English writes it, 1,234.5" : "");
}

bool JudgesTheAnswer(const std::string& component) {
  return component != "format" && component != "length_penalty";
}

// The components that say whether a completion is correct.
std::vector<std::string> Judges(const RewardOptions& options) {
  std::vector<std::string> judges, shapes;
  for (const auto& [name, weight] : options.weights) {
    if (JudgesTheAnswer(name)) judges.push_back(name);
    if (name == "format") shapes.push_back(name);
  }
  return judges.empty() ? shapes : judges;
}

// Sums of weights are compared up to this share: 0.6 + 0.3 + 0.1 is less than 1 by one rounding.
constexpr double kThresholdRounding = 1e-9;

bool Reaches(double sum, double threshold) {
  return sum >= threshold - kThresholdRounding * std::abs(threshold);
}

absl::Status CheckThreshold(const RewardOptions& options) {
  const std::vector<std::string> judges = Judges(options);
  double most = 0;
  for (const auto& [name, weight] : options.weights) {
    if (name == "subprocess") return absl::OkStatus();  // its rewards have no bound
    if (std::ranges::find(judges, name) != judges.end()) most += std::max(weight, 0.0);
  }
  if (judges.empty() || Reaches(most, options.pass_threshold)) return absl::OkStatus();
  return InvalidArgument(
      "reward.pass_threshold is ", options.pass_threshold, ", and the components that judge the ",
      "answer (", absl::StrJoin(judges, ", "), ") add up to ", most,
      " at most: no completion could count as correct; lower the threshold or raise a weight");
}

double LengthPenalty(double num_tokens, double soft, double hard) {
  return -std::clamp((num_tokens - soft) / (hard - soft), 0.0, 1.0);
}

std::string SubprocessRequest(const RewardInput& input) {
  nlohmann::ordered_json request;
  request["prompt"] = input.prompt;
  request["completion"] = input.text;
  request["answer"] = input.answer;
  request["source"] =
      nlohmann::ordered_json::parse(input.source_json, nullptr, /*allow_exceptions=*/false);
  if (request["source"].is_discarded()) request["source"] = nullptr;
  request["truncated"] = input.truncated;
  return request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

struct RewardFunction::Patterns {
  std::unique_ptr<RE2> regex, format;
};

void BindOptions(OptionBinder& binder, RewardOptions& options) {
  binder.NumberMap(
      "weights", &options.weights,
      absl::StrCat("component: weight of the sum; components: ", absl::StrJoin(kComponents, ", ")));
  binder.Number("pass_threshold", &options.pass_threshold, {}, "",
                "a completion counts as correct (pass@k, evaluation) when the weighted sum of the "
                "components that judge the answer, all but format and length_penalty, is at least "
                "this");
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
  binder.Choice("truncated", &options.truncated,
                {{"keep", TruncatedPolicy::kKeep},
                 {"mask", TruncatedPolicy::kMask},
                 {"zero", TruncatedPolicy::kZero},
                 {"penalise", TruncatedPolicy::kPenalise}},
                "completions that ended by length: score as others, do not train on them, reward "
                "0, or subtract truncated_penalty");
  binder.Number("truncated_penalty", &options.truncated_penalty, {.min = 0}, "",
                "subtracted from the reward of truncated completions (penalise)");
  binder.Section("subprocess", "component subprocess", options.subprocess);
}

absl::StatusOr<WrittenNumber> Gsm8kNumber(std::string_view text) {
  const size_t mark = text.rfind("####");
  if (mark != std::string_view::npos) {
    const std::vector<WrittenNumber> marked = NumbersIn(text.substr(mark + 4));
    if (!marked.empty()) return marked.front();
  }
  const std::vector<WrittenNumber> numbers = NumbersIn(text);
  if (numbers.empty()) return NotFound("no number");
  return numbers.back();
}

double NumberAnswer(const RewardInput& input, const WrittenNumber& want, double partial,
                    bool needs_stop) {
  const std::vector<WrittenNumber> got = NumbersIn(input.text);
  if (got.empty()) return 0;
  if (SameNumber(got.back(), want) && !(needs_stop && input.truncated)) return 1;
  const bool among =
      std::ranges::any_of(got, [&](const WrittenNumber& n) { return SameNumber(n, want); });
  return among ? partial : 0;
}

RewardFunction::RewardFunction(const RewardOptions& options)
    : options_(options), patterns_(std::make_unique<Patterns>()) {}

RewardFunction::~RewardFunction() = default;

absl::StatusOr<std::unique_ptr<RewardFunction>> RewardFunction::Create(
    const RewardOptions& options) {
  std::unique_ptr<RewardFunction> function(new RewardFunction(options));
  if (options.weights.empty()) {
    return InvalidArgument("reward.weights is empty: name at least one component");
  }
  const auto compile = [](const std::string& option, const std::string& pattern,
                          std::unique_ptr<RE2>* to) {
    RE2::Options quiet;
    quiet.set_log_errors(false);
    quiet.set_dot_nl(true);
    *to = std::make_unique<RE2>(pattern, quiet);
    if (!pattern.empty() && (*to)->ok()) return absl::OkStatus();
    return InvalidArgument("reward.", option, ": ",
                           pattern.empty() ? "no pattern is given" : (*to)->error());
  };
  for (const auto& [name, weight] : options.weights) {
    if (std::ranges::find(kComponents, name) == std::end(kComponents)) {
      return InvalidArgument("reward.weights: no component '", name, "'; there are ",
                             absl::StrJoin(kComponents, ", "));
    }
    if (name == "regex") {
      TANDEM_RETURN_IF_ERROR(compile(name, options.regex, &function->patterns_->regex));
    } else if (name == "format") {
      TANDEM_RETURN_IF_ERROR(compile(name, options.format, &function->patterns_->format));
    } else if (name == "length_penalty" &&
               options.length_hard_tokens <= options.length_soft_tokens) {
      return InvalidArgument("reward.length_hard_tokens must be above reward.length_soft_tokens");
    } else if (name == "subprocess") {
      if (options.subprocess.command.empty()) {
        return InvalidArgument("reward.subprocess.command is empty");
      }
      function->subprocess_ = std::make_unique<SubprocessReward>(options.subprocess);
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckThreshold(options));
  return function;
}

absl::StatusOr<double> RewardFunction::Component(const std::string& name,
                                                 const RewardInput& input) {
  const std::string_view text = Stripped(input.text);
  const std::string_view answer = Stripped(input.answer);
  if (name == "exact_match") return text == answer ? 1 : 0;
  if (name == "format") return RE2::FullMatch(text, *patterns_->format) ? 1 : 0;
  if (name == "length_penalty") {
    return LengthPenalty(static_cast<double>(input.num_tokens), options_.length_soft_tokens,
                         options_.length_hard_tokens);
  }
  if (name == "regex") {
    re2::StringPiece groups[2];
    const int wanted = patterns_->regex->NumberOfCapturingGroups() > 0 ? 2 : 1;
    if (!patterns_->regex->Match(text, 0, text.size(), RE2::UNANCHORED, groups, wanted)) return 0;
    const re2::StringPiece got = groups[wanted - 1];
    return Stripped({got.data(), got.size()}) == answer ? 1 : 0;
  }
  if (name == "subprocess") return subprocess_->Score(SubprocessRequest(input));

  TANDEM_ASSIGN_OR_RETURN(const WrittenNumber want, AnswerNumber(answer));
  if (name == "number_answer") {
    return NumberAnswer(input, want, options_.number_partial, options_.number_needs_stop);
  }
  if (name == "gsm8k") {
    const absl::StatusOr<WrittenNumber> got = Gsm8kNumber(text);
    return got.ok() && SameNumber(*got, want) ? 1 : 0;
  }
  const std::vector<WrittenNumber> numbers = NumbersIn(text);
  if (name == "last_number") return !numbers.empty() && SameNumber(numbers.back(), want) ? 1 : 0;
  if (name == "any_number") {
    return std::ranges::any_of(numbers, [&](const auto& n) { return SameNumber(n, want); }) ? 1 : 0;
  }
  return Internal("no branch of Component computes '", name, "'");
}

Reward RewardFunction::ScoreOne(const RewardInput& input) {
  Reward reward;
  const std::vector<std::string> judges = Judges(options_);
  double correctness = 0;
  if (input.truncated && options_.truncated == TruncatedPolicy::kMask) {
    reward.mask_reason = "truncated";
  }
  for (const auto& [name, weight] : options_.weights) {
    const absl::StatusOr<double> part = Component(name, input);
    if (!part.ok()) {
      reward.mask_reason = absl::StrCat("reward_failed: ", name, ": ", part.status().message());
      continue;
    }
    reward.parts.emplace_back(name, *part);
    reward.value += weight * *part;
    if (std::ranges::find(judges, name) != judges.end()) correctness += weight * *part;
  }
  reward.correct = !judges.empty() && Reaches(correctness, options_.pass_threshold) &&
                   !IsRewardFailure(reward.mask_reason);
  if (input.truncated && options_.truncated == TruncatedPolicy::kZero) reward.value = 0;
  if (input.truncated && options_.truncated == TruncatedPolicy::kPenalise) {
    reward.value -= options_.truncated_penalty;
  }
  return reward;
}

std::vector<Reward> RewardFunction::Score(const std::vector<RewardInput>& inputs) {
  std::vector<Reward> rewards;
  rewards.reserve(inputs.size());
  for (const RewardInput& input : inputs) rewards.push_back(ScoreOne(input));
  return rewards;
}

}  // namespace tandem::trainer
