// The text of tokens as a person can see where one ends and the next begins. Used by `tandem data`.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {

struct TokenText {
  std::string text;                        // its control characters are escaped, line breaks kept
  std::map<std::string, int64_t> special;  // special tokens and how often each occurs
};

// The text of `ids`. With `in_colour`, tokens have two backgrounds in turn and special ones a third;
// tokens that share a character (parts of its UTF-8) have one background. Without it the text is
// plain.
//   INVALID_ARGUMENT  an id outside the vocabulary
absl::StatusOr<TokenText> ShowTokens(std::span<const int32_t> ids, const Tokenizer& tokenizer,
                                     bool in_colour);

}  // namespace tandem::cli
