// The prompts of `tandem drift compare`: a file of text lines, or of JSON lines with one of `prompt`,
// `messages`, `ids` and `token_ids`. Used by drift_compare.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {

// A line is JSON if it begins with a brace, else it is the text of a prompt. Empty lines are skipped.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  a line (named) that is neither; no prompt at all; errors of ReadPrompt
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadComparePrompts(const std::string& path,
                                                                     const Tokenizer& tokenizer);

}  // namespace tandem::cli
