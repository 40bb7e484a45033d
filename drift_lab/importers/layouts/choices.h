// Rows of answers in the form of OpenAI's endpoints (choices[] with logprobs), which vLLM, SGLang,
// llama.cpp and others answer with, each with token ids of its own in them. Used by engine_answers.cc.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/importers/layouts/answer_parts.h"

namespace tandem::drift {

// Adds a row for each choice. Ids are those of choices[].token_ids, of logprobs.content[].id, or of
// tokens written as "token_id:N"; the prompt's those of prompt_token_ids or of the request.
//   INVALID_ARGUMENT  no choices, no log-probs, or no token ids: then the message ends with
//                     `how_to_get_ids`
absl::Status AddChoices(const Answer& answer, std::string_view how_to_get_ids,
                        ImportContext& context);

}  // namespace tandem::drift
