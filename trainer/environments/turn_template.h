// TurnTemplate: the ids that are given to a model between two of its turns, by its own chat
// template and without making one id of a turn again. Used where an environment's or a tool's
// messages become ids.
//
// The idea: tokenising is no inverse of detokenising, so a turn that was decoded and encoded again
// may have other ids than those that were sampled, and the log-probs of neither (trl #5224, verl
// #6719). So the sampled ids stay, and only what follows them is made from text. The conversation is
// rendered with a marker in place of the turn's text; what stands behind the first end-of-turn token
// after the marker follows the turn, whatever the template did with the messages before (some strip
// the thoughts of earlier turns). That text is encoded from the end-of-turn token on. No merge of a
// tokenizer goes over a special token, so
//   Encode(a + END + b) = Encode(a + END) ++ Encode(END + b) without its first id.
//
// Immutable after Create. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::trainer {

class TurnTemplate {
 public:
  // `end_ids`: the tokens that end a turn, as the model's configuration names them. `tokenizer`
  // must outlive this. Tries the template on a conversation of two turns.
  //   UNIMPLEMENTED     the model has no chat template
  //   INVALID_ARGUMENT  none of `end_ids` has a text of its own; the template shows no assistant
  //                     message, or none of these tokens behind it (the message says what to do)
  static absl::StatusOr<TurnTemplate> Create(const Tokenizer* tokenizer,
                                             const std::vector<int32_t>& end_ids);

  // The ids that follow a turn. `before`: the messages up to it, and `after`: those that answer it,
  // both JSON arrays of {"role", "content", ..}; `after` is not empty. The turn is an assistant
  // message between them. `ended_by_token`: whether its last id is an end-of-turn token; else (a
  // stop string ended it) the ids begin with one.
  //   INVALID_ARGUMENT  malformed messages; the template refuses them, or as Create
  absl::StatusOr<std::vector<int32_t>> IdsAfter(std::string_view before, std::string_view after,
                                                bool ended_by_token) const;

 private:
  struct EndToken {
    int32_t id = 0;
    std::string text;
  };

  explicit TurnTemplate(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  const Tokenizer* tokenizer_;
  std::vector<EndToken> end_tokens_;
};

}  // namespace tandem::trainer
