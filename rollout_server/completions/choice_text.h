// ChoiceText: the text of one completion for a caller of a text protocol, whole or piece by piece.
//
// The pieces of a stream add up to the whole text: text that may be the beginning of a stop string
// is held back until it is not, and that of a stop token is never given. Special tokens are left
// out unless they are wanted, while stop strings are matched by the engine with them shown; a stop
// string that ended the completion and is not in the text without special tokens cuts nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "rollout_server/engine/sampling/growing_text.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/engine/schedule/stop_ids.h"

namespace tandem::rollout {

// How the texts of a job are made.
struct TextRules {
  const Tokenizer* tokenizer = nullptr;
  bool skip_special_tokens = true;
  bool include_stop = false;  // the stop string or stop token belongs to the text
  std::vector<std::string> stop_strings;
  StopIds stop_ids;

  DecodeIds decode() const;
};

// The whole text.
absl::StatusOr<std::string> TextOf(const TextRules& rules, const FinishedCompletion& completion);

// The stop string that ended the completion; empty if none did.
std::string StopStringOf(const TextRules& rules, const FinishedCompletion& completion);

// Use from one thread at a time. `rules` must outlive it.
class ChoiceText {
 public:
  explicit ChoiceText(const TextRules* rules) : rules_(rules), growing_(rules->decode()) {}

  // The text that is certain with one more token.
  absl::StatusOr<std::string> Add(int32_t id);

  // The rest of the text. A decoder that took text back leaves none.
  absl::StatusOr<std::string> Finish(const FinishedCompletion& completion);

 private:
  size_t Certain() const;  // bytes of text_

  const TextRules* const rules_;
  GrowingText growing_;
  std::vector<int32_t> ids_;
  std::string text_;
  size_t given_ = 0;  // bytes of text_
};

}  // namespace tandem::rollout
