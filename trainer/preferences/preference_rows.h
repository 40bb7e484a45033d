// PreferenceRow: one row of preference data, before the tokenizer, in any of the forms that data
// sets of TRL, UltraFeedback and HH-RLHF have. preference_data.h reads files of them. Pure.
//
//   {"prompt": P, "chosen": C, "rejected": C, "margin": m}  a pair; margin may be absent
//   {"chosen": messages, "rejected": messages}              a pair with an implicit prompt: all
//                                                           messages but the last
//   {"chosen": dialogue, "rejected": dialogue}              the same as text, in the form
//                                                           "\n\nHuman: ..\n\nAssistant: .."
//   {"prompt": P, "completion": C, "label": true}           a completion with a label, for KTO
//
// P is a text or messages [{"role", "content"}..]; C is a text, one message of the assistant, or
// messages that repeat the prompt and end with one. A text P may be a dialogue that ends with
// "\n\nAssistant:". "score_chosen" and "score_rejected" are read
// where both are there; other fields are ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem::trainer {

struct PreferenceRow {
  // The prompt: a text, or messages as JSON. Both for a dialogue, whose text is for models without
  // a chat template.
  std::string prompt_text, prompt_messages;

  // A pair ...
  std::string chosen, rejected;
  std::optional<double> margin;
  std::optional<double> score_chosen, score_rejected;  // both or neither

  // ... or a completion with a label.
  std::string completion;
  std::optional<bool> desirable;

  bool is_pair() const { return !desirable.has_value(); }
  bool is_dialogue() const { return !prompt_text.empty() && !prompt_messages.empty(); }
};

// Parses one row. `place` ("FILE:LINE") opens error messages.
//   INVALID_ARGUMENT     not a JSON object, none of the forms above, or a field of the wrong type
//                        or not finite; says what was expected
//   FAILED_PRECONDITION  the form is right, but there is nothing to learn: equal sides, a blank
//                        side, or sides that answer different prompts
absl::StatusOr<PreferenceRow> ParsePreferenceRow(std::string_view json_text,
                                                 const std::string& place);

}  // namespace tandem::trainer
