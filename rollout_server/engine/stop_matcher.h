// StopMatcher: finds stop strings in a completion as it grows, on the server's own detokenisation. A stop
// string may span tokens, and a character may span tokens too: text counts once its bytes are complete.
// Use from the engine thread only.
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

  // Looks at the completion after a token was added. The length in bytes of the text before the first
  // stop string once one is there.
  absl::StatusOr<std::optional<size_t>> Check(std::span<const int32_t> token_ids);

 private:
  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_strings_;
};

// Drops a trailing U+FFFD run that stands for bytes of an unfinished character.
std::string_view WithoutUnfinishedCharacter(std::string_view text);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_STOP_MATCHER_H_
