// ContinuedSteps: the prefixes of a completion that Math-Shepherd continues (Wang et al. 2023,
// arXiv 2312.08935), and the labels that come of it. A step is as good as what its continuations
// reach: from each prefix of whole steps K completions are sampled and judged. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/preferences/process_reward.h"

namespace tandem::cli {

struct ContinuedSteps {
  std::vector<std::string> steps;     // texts, as a process reward model is trained on
  std::vector<std::string> prefixes;  // the completion up to the end of each step
  // [steps] the ids of each prefix. Steps are encoded apart, as EncodeSteps does, so that each
  // prefix begins with the ids of the one before it and a server finds their KV again.
  std::vector<std::vector<int32_t>> prefix_ids;
};

// With tags, what stands between two steps belongs to the prefix after the first of them. What
// follows the last step belongs to no prefix.
//   INVALID_ARGUMENT  the completion has no step; as StepSplitter::Split and Tokenizer::Encode
absl::StatusOr<ContinuedSteps> SplitCompletion(std::string_view completion,
                                               const trainer::StepOptions& options,
                                               const Tokenizer& tokenizer);

enum class StepLabel {
  kHard,  // 1 if any continuation is right
  kSoft,  // the share of continuations that are
};

// The label of a step of which `num_right` of `num_judged` >= 1 continuations are right.
double LabelOf(StepLabel kind, int64_t num_right, int64_t num_judged);

}  // namespace tandem::cli
