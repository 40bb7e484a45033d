// CompletionText: drawn ids as text, special tokens shown. Ids past the tokenizer's vocabulary
// (padding rows of the embedding, as in Qwen2) can be drawn and are no text. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::rollout {

absl::StatusOr<std::string> CompletionText(const Tokenizer& tokenizer,
                                           std::span<const int32_t> token_ids);

}  // namespace tandem::rollout
