// StopMatcher: finds stop strings in a completion as it grows, on the server's own detokenisation.
// A stop string may span tokens, and a character may span tokens too: text counts once its bytes
// are complete. Decodes the last tokens alone, after those before them (a decoder may treat the
// first one differently), as transformers' streamers do; the whole text is decoded once, when a
// stop string seems to be there. Use from the engine thread only.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_STOP_MATCHER_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_STOP_MATCHER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::rollout {

class StopMatcher {
 public:
  // `tokenizer` must outlive the matcher.
  StopMatcher(const Tokenizer* tokenizer, std::vector<std::string> stop_strings);

  // Looks at the completion after tokens were added; those of the call before stand first. The
  // length in bytes of the text before the first stop string once one is there.
  absl::StatusOr<std::optional<size_t>> Check(std::span<const int32_t> token_ids);

 private:
  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_strings_;
  const size_t kept_bytes_;  // of text that may be the beginning of a stop string
  std::string tail_;         // the last of them, of the tokens before read_
  size_t context_ = 0,
         read_ = 0;  // tokens [context_, read_) are decoded again before those from read_ on
};

// Drops a trailing U+FFFD run that stands for bytes of an unfinished character.
std::string_view WithoutUnfinishedCharacter(std::string_view text);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_STOP_MATCHER_H_
