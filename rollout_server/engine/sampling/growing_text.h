// GrowingText: the text of a completion as it grows, from its ids.
//
// A character may span tokens, so its text counts once its bytes are complete. Each call decodes a
// window: the tokens since the last complete text, and the ones before them as context, because a
// decoder may treat its first token differently (transformers' TextStreamer does the same). So a
// completion of n tokens costs decodes of O(n) tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem::rollout {

// The text of ids, with U+FFFD for bytes that are no characters: CompletionText, with a tokenizer.
using DecodeIds = std::function<absl::StatusOr<std::string>(std::span<const int32_t>)>;

// Use from one thread at a time.
class GrowingText {
 public:
  explicit GrowingText(DecodeIds decode) : decode_(std::move(decode)) {}

  // The complete text that `token_ids` have beyond what was returned before. Call after tokens were
  // added; `token_ids` begins with those of the call before. A decoder that takes text back gives
  // no text until it has more than before.
  absl::StatusOr<std::string> Next(std::span<const int32_t> token_ids);

 private:
  const DecodeIds decode_;
  size_t context_ = 0,
         read_ = 0;          // the window is tokens from read_ on, after context [context_, read_)
  size_t num_returned_ = 0;  // bytes of the window's text, its context's included
};

// Drops replacement characters (U+FFFD) at the end that may stand for bytes of an unfinished
// character. It has at most three such bytes, so the others of a longer run are text.
std::string_view WithoutUnfinishedCharacter(std::string_view text);

}  // namespace tandem::rollout
