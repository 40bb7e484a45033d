// The prompts of a run: those to train on and the held-out ones, checked against the model.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/prompts/prompt_source.h"

namespace tandem::trainer {

struct RunPrompts {
  std::unique_ptr<PromptSource> train;
  std::unique_ptr<PromptSource> eval;  // null without data.eval
};

// Reads and tokenises data.train and data.eval. `tokenizer` is used during the call only.
//   errors of PromptSource::Open
//   INVALID_ARGUMENT  a prompt to train on and sampling.max_new_tokens are over the model's context
//                     (FILE:LINE of the longest)
absl::StatusOr<RunPrompts> OpenRunPrompts(const DataOptions& data, int64_t run_seed,
                                          int64_t max_new_tokens, const ModelConfig& model,
                                          const Tokenizer& tokenizer);

}  // namespace tandem::trainer
