// StopMatcher: finds stop strings in a completion as it grows, on the server's own detokenisation.
// A stop string may span tokens, and a character may span tokens too: text counts once its bytes
// are complete. Decodes the last tokens alone, after those before them (a decoder may treat the
// first one differently), as transformers' streamers do; the whole text is decoded when a stop
// string seems to be there. A completion of n tokens costs decodes of O(n) tokens whatever it
// holds. Use from the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::rollout {

class StopMatcher {
 public:
  // CompletionText, with the server's tokenizer.
  using Decode = std::function<absl::StatusOr<std::string>(std::span<const int32_t>)>;

  StopMatcher(Decode decode, std::vector<std::string> stop_strings);

  // Looks at the completion after tokens were added; those of the call before stand first. The
  // length in bytes of the text before the first stop string once one is there. Where the last
  // tokens alone once promised a stop string that the whole text did not have (a decoder that takes
  // back what it showed), a later one may be found up to a quarter of the completion too late: by
  // FirstIn, where it ends before that.
  absl::StatusOr<std::optional<size_t>> Check(std::span<const int32_t> token_ids);

  // The length in bytes of the text before its first stop string, of a completion that has ended:
  // bytes at its end that are no character are replacement characters now, as in every text.
  std::optional<size_t> FirstIn(std::string_view text) const;

 private:
  bool EndsIn(std::string_view recent, size_t num_known_bytes) const;

  const Decode decode_;
  const std::vector<std::string> stop_strings_;
  const size_t kept_bytes_;  // of text that may be the beginning of a stop string
  std::string tail_;         // the last of them, of the tokens before read_
  size_t context_ = 0,
         read_ = 0;         // tokens [context_, read_) are decoded again before those from read_ on
  bool suspected_ = false;  // the whole text is to be looked at
  size_t next_whole_ = 0;   // tokens, when that may be done again
};

// Drops replacement characters (U+FFFD) at the end that may stand for the bytes of an unfinished
// character. It has at most three, so of a longer run the others are text: bytes of no character.
std::string_view WithoutUnfinishedCharacter(std::string_view text);

}  // namespace tandem::rollout
