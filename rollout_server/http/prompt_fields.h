// Prompts in requests: texts and ids of /v1/completions, and the messages of a chat, which the
// model's own template renders.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "rollout_server/http/json_fields.h"
#include "rollout_server/http/request_fields.h"

namespace tandem::rollout {

// Whether a chat has `tools`, and tool_choice lets the model call them.
bool OffersTools(JsonFields& fields);

// Thread-safe.
class PromptReader {
 public:
  // `tokenizer` must outlive this.
  PromptReader(const Tokenizer* tokenizer, int64_t context_tokens)
      : tokenizer_(tokenizer), context_tokens_(context_tokens) {}

  // The field `prompt`: a text, ids, or an array of either; with add_special_tokens (true) and
  // truncate_prompt_tokens.
  absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(JsonFields& fields,
                                                                const ModelFacts& facts) const;

  // The field `messages` with `tools`, tool_choice, chat_template_kwargs, add_generation_prompt
  // (true), continue_final_message, add_special_tokens (false) and truncate_prompt_tokens.
  absl::StatusOr<std::vector<int32_t>> ReadChat(JsonFields& fields) const;

  // A text as ids. A text that cannot fit into the context is refused before it is tokenised.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const;

 private:
  int64_t LongestTokenBytes() const;

  const Tokenizer* const tokenizer_;
  const int64_t context_tokens_;
  mutable std::once_flag measured_;
  mutable int64_t longest_token_bytes_ = 1;  // once measured_
};

}  // namespace tandem::rollout
