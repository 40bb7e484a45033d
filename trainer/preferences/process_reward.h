// Process reward models: a score for each step of a completion (Lightman et al. 2023, arXiv
// 2305.20050; Wang et al. 2023, Math-Shepherd, arXiv 2312.08935). Where the steps of a text end,
// the loss on labels of steps, and the score of the whole from those of its steps. Pure.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"

namespace re2 {
class RE2;
}  // namespace re2

namespace tandem::trainer {

// What ends a step.
//   kNewline  a line break, with the blank lines after it
//   kRegex    a match of `pattern`, a regular expression of RE2
//   kMarker   the text `pattern`, for example a special token
//   kTags     none of these: steps lie between <pattern> and </pattern>
enum class StepBoundary { kNewline, kRegex, kMarker, kTags };

struct StepOptions {
  StepBoundary boundary = StepBoundary::kNewline;
  std::string pattern;
};
void BindOptions(OptionBinder& binder, StepOptions& options);

// Bytes [begin, end) of a text. The token with byte end - 1 is where the score of the step is read.
struct StepRange {
  size_t begin = 0, end = 0;

  bool operator==(const StepRange&) const = default;
};

// Thread-safe after Create.
class StepSplitter {
 public:
  //   INVALID_ARGUMENT  the pattern is empty for a boundary that needs one, or given for newline;
  //                     no regular expression, or one that matches the empty text
  static absl::StatusOr<StepSplitter> Create(const StepOptions& options);
  ~StepSplitter();
  StepSplitter(StepSplitter&&);
  StepSplitter& operator=(StepSplitter&&);

  // The steps of `text` in order; none if it is blank. Steps cover the text without a gap and
  // include what ends them; the last one ends with the text. A step of nothing but white space is a
  // part of the one before it, or of the one after it at the start. With tags, steps are the texts
  // between them, and all else belongs to no step; a last step without its closing tag, as in a
  // truncated completion, ends with the text.
  //   INVALID_ARGUMENT  tags: one is opened inside another, or closed without having been opened
  //                     (with its byte)
  absl::StatusOr<std::vector<StepRange>> Split(std::string_view text) const;

 private:
  explicit StepSplitter(const StepOptions& options);

  std::vector<StepRange> SplitAtEnds(std::string_view text) const;
  absl::StatusOr<std::vector<StepRange>> SplitTags(std::string_view text) const;

  StepOptions options_;
  std::unique_ptr<re2::RE2> end_;  // null for tags
};

// The loss on the steps of a batch: binary cross-entropy of sigmoid(logit) with a label, which is
// 0, 1, or the share of continuations from this step that are right (Math-Shepherd's soft
// estimate):
//
//   -y log sigmoid(z) - (1 - y) log sigmoid(-z)
//
// The loss of the batch is the sum of the values divided by its number of steps; slopes are
// derivatives of the sum by the logits. All [S], parallel; labels in [0, 1].
struct StepLoss {
  std::vector<double> value, slope;
};
StepLoss ComputeStepLoss(std::span<const double> logits, std::span<const double> labels);

// The score of a completion from the scores of its steps (probabilities). Lightman et al. take the
// product, Math-Shepherd the minimum; last is that of an outcome reward model.
enum class StepAggregation { kMin, kSum, kProduct, kLast, kMean };

// `scores` [S]; NaN without a step.
double AggregateSteps(std::span<const double> scores, StepAggregation aggregation);

}  // namespace tandem::trainer
