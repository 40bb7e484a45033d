#include "rollout_server/engine/sampling/completion_text.h"

#include <vector>

namespace tandem::rollout {

absl::StatusOr<std::string> CompletionText(const Tokenizer& tokenizer,
                                           std::span<const int32_t> token_ids) {
  std::vector<int32_t> known;
  known.reserve(token_ids.size());
  for (int32_t id : token_ids) {
    if (id < tokenizer.vocab_size()) known.push_back(id);
  }
  return tokenizer.Decode(known, /*skip_special_tokens=*/false);
}

}  // namespace tandem::rollout
