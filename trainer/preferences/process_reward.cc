#include "trainer/preferences/process_reward.h"

#include <re2/re2.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "trainer/preferences/log_sigmoid.h"

namespace tandem::trainer {
namespace {

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// The regular expression of what ends a step, which every boundary but tags is a case of.
std::string EndPattern(const StepOptions& options) {
  if (options.boundary == StepBoundary::kRegex) return options.pattern;
  if (options.boundary == StepBoundary::kMarker) return RE2::QuoteMeta(options.pattern);
  return "\n(?:[ \t\r]*\n)*";
}

}  // namespace

void BindOptions(OptionBinder& binder, StepOptions& options) {
  binder.Choice("boundary", &options.boundary,
                {{"newline", StepBoundary::kNewline},
                 {"regex", StepBoundary::kRegex},
                 {"marker", StepBoundary::kMarker},
                 {"tags", StepBoundary::kTags}},
                "what ends a step: a line break; a match of pattern (RE2); the text pattern; or "
                "steps lie between the tags <pattern> and </pattern>");
  binder.Text("pattern", &options.pattern, "of boundary regex, marker or tags");
}

StepSplitter::StepSplitter(const StepOptions& options) : options_(options) {}
StepSplitter::~StepSplitter() = default;
StepSplitter::StepSplitter(StepSplitter&&) = default;
StepSplitter& StepSplitter::operator=(StepSplitter&&) = default;

absl::StatusOr<StepSplitter> StepSplitter::Create(const StepOptions& options) {
  if (options.boundary == StepBoundary::kNewline && !options.pattern.empty()) {
    return InvalidArgument("boundary newline has no pattern, but pattern is '", options.pattern,
                           "': leave it out, or set boundary to regex, marker or tags");
  }
  if (options.boundary != StepBoundary::kNewline && options.pattern.empty()) {
    return InvalidArgument(
        "pattern is empty; boundary regex, marker and tags need one, for example step for the tags "
        "<step> and </step>");
  }
  StepSplitter splitter(options);
  if (options.boundary == StepBoundary::kTags) return splitter;
  RE2::Options quiet;
  quiet.set_log_errors(false);
  splitter.end_ = std::make_unique<RE2>(EndPattern(options), quiet);
  if (!splitter.end_->ok()) {
    return InvalidArgument("pattern '", options.pattern,
                           "' is not a regular expression of RE2: ", splitter.end_->error());
  }
  if (RE2::FullMatch("", *splitter.end_)) {
    return InvalidArgument("pattern '", options.pattern,
                           "' matches the empty text, so a step could end anywhere: let it match "
                           "at least one character");
  }
  return splitter;
}

absl::StatusOr<std::vector<StepRange>> StepSplitter::Split(std::string_view text) const {
  if (options_.boundary == StepBoundary::kTags) return SplitTags(text);
  return SplitAtEnds(text);
}

std::vector<StepRange> StepSplitter::SplitAtEnds(std::string_view text) const {
  std::vector<StepRange> steps;
  if (IsBlank(text)) return steps;
  const re2::StringPiece all(text.data(), text.size());
  size_t begin = 0;   // of the step that has not ended
  size_t search = 0;  // where the next match may start
  re2::StringPiece match;
  while (search < text.size() &&
         end_->Match(all, search, text.size(), RE2::UNANCHORED, &match, 1)) {
    const auto match_begin = static_cast<size_t>(match.data() - text.data());
    search = match_begin + std::max<size_t>(1, match.size());  // \b and its like match nothing
    if (match.empty()) continue;
    if (!IsBlank(text.substr(begin, match_begin - begin))) {
      steps.push_back({begin, search});
      begin = search;
    } else if (!steps.empty()) {
      steps.back().end = begin = search;
    }
  }
  if (steps.empty() || !IsBlank(text.substr(begin))) {
    steps.push_back({begin, text.size()});
  } else {
    steps.back().end = text.size();
  }
  return steps;
}

absl::StatusOr<std::vector<StepRange>> StepSplitter::SplitTags(std::string_view text) const {
  const std::string open = absl::StrCat("<", options_.pattern, ">");
  const std::string close = absl::StrCat("</", options_.pattern, ">");
  std::vector<StepRange> steps;
  for (size_t at = 0;;) {
    const size_t opened = text.find(open, at);
    const size_t stray = text.substr(0, opened).find(close, at);
    if (stray != text.npos) {
      return InvalidArgument("byte ", stray, ": ", close, " without ", open, " before it");
    }
    if (opened == text.npos) return steps;
    const size_t begin = opened + open.size();
    const size_t end = std::min(text.find(close, begin), text.size());
    const size_t nested = text.substr(0, end).find(open, begin);
    if (nested != text.npos) {
      return InvalidArgument("byte ", nested, ": ", open, " inside the step that byte ", opened,
                             " opened");
    }
    steps.push_back({begin, end});
    if (end == text.size()) return steps;
    at = end + close.size();
  }
}

StepLoss ComputeStepLoss(std::span<const double> logits, std::span<const double> labels) {
  TANDEM_CHECK(logits.size() == labels.size());
  StepLoss loss{std::vector<double>(logits.size()), std::vector<double>(logits.size())};
  for (size_t i = 0; i < logits.size(); ++i) {
    loss.value[i] = -labels[i] * LogSigmoid(logits[i]) - (1 - labels[i]) * LogSigmoid(-logits[i]);
    loss.slope[i] = Sigmoid(logits[i]) - labels[i];
  }
  return loss;
}

double AggregateSteps(std::span<const double> scores, StepAggregation aggregation) {
  if (scores.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  switch (aggregation) {
    case StepAggregation::kMin:
      return *std::ranges::min_element(scores);
    case StepAggregation::kSum:
      return sum;
    case StepAggregation::kProduct:
      return std::accumulate(scores.begin(), scores.end(), 1.0, std::multiplies<>());
    case StepAggregation::kLast:
      return scores.back();
    case StepAggregation::kMean:
      break;
  }
  return sum / static_cast<double>(scores.size());
}

}  // namespace tandem::trainer
