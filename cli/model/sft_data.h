// Examples of a supervised warm start: JSON lines -> prompt ids and completion ids. `tandem sft`
// uses it; free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {

struct SupervisedExample {
  std::vector<int32_t> prompt;      // [P], P >= 1
  std::vector<int32_t> completion;  // [T], the end token last
};

// Rows as the trainer reads them (prompt, messages or question, with an answer); messages that end
// with the assistant's need no answer. The prompt goes through the chat template where the model
// has one; a completion is the answer and then `end_token`.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  a line (FILE:LINE) that is none of these or is longer than `max_tokens`; no
//   line
absl::StatusOr<std::vector<SupervisedExample>> ReadSupervisedExamples(const std::string& path,
                                                                      const Tokenizer& tokenizer,
                                                                      int32_t end_token,
                                                                      int64_t max_tokens);

}  // namespace tandem::cli
