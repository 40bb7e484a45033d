// StopMatcher: finds stop strings in a completion as it grows, in the server's own detokenisation.
// Use from the engine thread only.
//
// A stop string may span tokens. The whole text is decoded only when the text that was added
// (growing_text.h) shows a stop string, and then not again before the completion has grown by a
// quarter. So a completion of n tokens costs decodes of O(n) tokens, whatever it contains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/engine/sampling/growing_text.h"

namespace tandem::rollout {

class StopMatcher {
 public:
  StopMatcher(DecodeIds decode, std::vector<std::string> stop_strings);

  // Call after tokens were added; `token_ids` begins with those of the previous call. Returns the
  // length in bytes of the text before the first stop string, once there is one. After a window
  // that showed a stop string which the whole text does not have (a decoder may take text back), a
  // later stop string may be found late, by up to a quarter of the completion; FirstIn finds it
  // when the completion ends before that.
  absl::StatusOr<std::optional<size_t>> Check(std::span<const int32_t> token_ids);

  // For a completion that has ended: the length in bytes of its text before the first stop string.
  // Incomplete bytes at its end count as replacement characters now.
  std::optional<size_t> FirstIn(std::string_view text) const;

 private:
  bool EndsIn(std::string_view recent, size_t num_known_bytes) const;

  const DecodeIds decode_;
  const std::vector<std::string> stop_strings_;
  const size_t kept_bytes_;  // how much text may be the beginning of a stop string
  GrowingText growing_;
  std::string tail_;        // the last kept_bytes_ of the text so far
  bool suspected_ = false;  // the whole text must be decoded
  size_t next_whole_ = 0;   // the number of tokens from which on that may be done
};

}  // namespace tandem::rollout
