#include "trainer/rewards/text_components.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "trainer/rewards/ngrams.h"

namespace tandem::trainer {
namespace {

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

double LengthPenalty(double num_tokens, double soft, double hard) {
  return -std::clamp((num_tokens - soft) / (hard - soft), 0.0, 1.0);
}

absl::Status Compile(const std::string& option, const std::string& pattern,
                     std::unique_ptr<RE2>* to) {
  RE2::Options quiet;
  quiet.set_log_errors(false);
  quiet.set_dot_nl(true);
  *to = std::make_unique<RE2>(pattern, quiet);
  if (!pattern.empty() && (*to)->ok()) return absl::OkStatus();
  return InvalidArgument("reward.", option, ": ",
                         pattern.empty() ? "no pattern is given" : (*to)->error());
}

}  // namespace

struct TextComponents::Patterns {
  std::unique_ptr<RE2> regex, format;
};

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
  const std::vector<WrittenNumber> got = NumbersIn(input.answering_text());
  if (got.empty()) return 0;
  if (SameNumber(got.back(), want) && !(needs_stop && input.truncated)) return 1;
  const bool among =
      std::ranges::any_of(got, [&](const WrittenNumber& n) { return SameNumber(n, want); });
  return among ? partial : 0;
}

TextComponents::TextComponents(const RewardOptions& options)
    : options_(options), patterns_(std::make_unique<Patterns>()) {}

TextComponents::~TextComponents() = default;

absl::StatusOr<std::unique_ptr<TextComponents>> TextComponents::Create(
    const RewardOptions& options) {
  std::unique_ptr<TextComponents> components(new TextComponents(options));
  Patterns& patterns = *components->patterns_;
  for (const auto& [name, weight] : options.weights) {
    if (name == "regex") TANDEM_RETURN_IF_ERROR(Compile(name, options.regex, &patterns.regex));
    if (name == "format") TANDEM_RETURN_IF_ERROR(Compile(name, options.format, &patterns.format));
  }
  return components;
}

absl::StatusOr<double> TextComponents::Value(const std::string& name,
                                             const RewardInput& input) const {
  const std::string_view whole = Stripped(input.text);
  const std::string_view text = Stripped(input.answering_text());
  const std::string_view answer = Stripped(input.answer);
  if (name == "exact_match") return text == answer ? 1 : 0;
  if (name == "format") return RE2::FullMatch(whole, *patterns_->format) ? 1 : 0;
  if (name == "length_penalty") {
    return LengthPenalty(static_cast<double>(input.num_tokens), options_.length_soft_tokens,
                         options_.length_hard_tokens);
  }
  if (name == "repetition") return Repetition(whole, options_.ngram_words);
  if (name == "regex") {
    re2::StringPiece groups[2];
    const int wanted = patterns_->regex->NumberOfCapturingGroups() > 0 ? 2 : 1;
    if (!patterns_->regex->Match(text, 0, text.size(), RE2::UNANCHORED, groups, wanted)) return 0;
    const re2::StringPiece got = groups[wanted - 1];
    return Stripped({got.data(), got.size()}) == answer ? 1 : 0;
  }

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
  return Internal("no branch of TextComponents::Value computes '", name, "'");
}

std::vector<double> TextComponents::GroupValues(const std::string&,
                                                const std::vector<RewardInput>& inputs) const {
  std::vector<std::string_view> texts;
  for (const RewardInput& input : inputs) texts.push_back(input.text);
  return Diversity(texts, options_.ngram_words);
}

}  // namespace tandem::trainer
