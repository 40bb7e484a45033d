// What a run file names, before anything is started: whether the models and files are there, and
// what its prompts are.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/run_file/run_file.h"

namespace tandem::cli {

// Of both models: config, tokenizer and weights; of data, probe, certificates and tokens: that the
// file can be opened. What they hold is their readers' to judge.
//   NOT_FOUND with exit code 3  everything that is missing, one a line
absl::Status CheckInputs(const RunFile& file);

struct PromptCounts {
  int64_t num_train = 0, num_eval = 0;  // prompts
  int64_t num_dropped = 0;              // of both: over data.max_prompt_tokens
};

// Reads and tokenises the prompts as the trainer will.
//   errors of the tokenizer and of trainer::OpenRunPrompts, with exit code 3
absl::StatusOr<PromptCounts> CountPrompts(const RunFile& file);

}  // namespace tandem::cli
