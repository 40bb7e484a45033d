#include "cli/data/continued_steps.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::cli {

using trainer::StepRange;

absl::StatusOr<ContinuedSteps> SplitCompletion(std::string_view completion,
                                               const trainer::StepOptions& options,
                                               const Tokenizer& tokenizer) {
  TANDEM_ASSIGN_OR_RETURN(const trainer::StepSplitter splitter,
                          trainer::StepSplitter::Create(options));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<StepRange> ranges, splitter.Split(completion));
  if (ranges.empty()) return absl::InvalidArgumentError("\"completion\" has no step");
  ContinuedSteps continued;
  std::vector<int32_t> ids;
  size_t begin = 0;  // of the piece that is encoded next
  for (size_t s = 0; s < ranges.size(); ++s) {
    const StepRange& range = ranges[s];
    size_t end = range.end;
    const std::string close = absl::StrCat("</", options.pattern, ">");
    if (options.boundary == trainer::StepBoundary::kTags &&
        completion.substr(end).starts_with(close)) {
      end += close.size();
    }
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> piece,
                            tokenizer.Encode(completion.substr(begin, end - begin)));
    ids.insert(ids.end(), piece.begin(), piece.end());
    continued.steps.emplace_back(completion.substr(range.begin, range.end - range.begin));
    continued.prefixes.emplace_back(completion.substr(0, end));
    continued.prefix_ids.push_back(ids);
    begin = end;
  }
  return continued;
}

double LabelOf(StepLabel kind, int64_t num_right, int64_t num_judged) {
  if (kind == StepLabel::kHard) return num_right > 0 ? 1 : 0;
  return static_cast<double>(num_right) / static_cast<double>(num_judged);
}

}  // namespace tandem::cli
