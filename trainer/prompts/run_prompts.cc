#include "trainer/prompts/run_prompts.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {

absl::StatusOr<RunPrompts> OpenRunPrompts(const DataOptions& data, int64_t run_seed,
                                          int64_t max_new_tokens, const ModelConfig& model,
                                          const Tokenizer& tokenizer) {
  RunPrompts prompts;
  const auto seed = static_cast<uint64_t>(run_seed);
  TANDEM_ASSIGN_OR_RETURN(prompts.train, PromptSource::Open(data.train, data, seed, tokenizer));
  if (!data.eval.empty()) {
    TANDEM_ASSIGN_OR_RETURN(prompts.eval, PromptSource::Open(data.eval, data, seed, tokenizer));
  }
  const auto longest = std::ranges::max_element(
      prompts.train->prompts(), {}, [](const auto& prompt) { return prompt.token_ids_size(); });
  const int64_t needed = longest->token_ids_size() + max_new_tokens;
  if (needed > model.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.train, ":", longest->index() + 1, ": ", longest->token_ids_size(),
                     " prompt tokens and sampling.max_new_tokens ", max_new_tokens,
                     " exceed the model's context of ", model.max_position_embeddings));
  }
  return prompts;
}

}  // namespace tandem::trainer
