// Parts of engines' answers that several engines share. Used by engine_answers.cc and choices.cc. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/records/records_builder.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

// The two bodies of a call. `request` is null where only the answer was kept.
struct Answer {
  const nlohmann::json* response = nullptr;
  const nlohmann::json* request = nullptr;
};
Answer AnswerOf(const nlohmann::json& item);

// The ids of the prompt in the request (prompt, input_ids or token_ids, where they are ids), else
// nothing.
//   INVALID_ARGUMENT  the request has several prompts
absl::StatusOr<std::optional<std::vector<int32_t>>> RequestedIds(const Answer& answer);

// Claims the sampling parameters of the request, which stand in it or in its sampling_params.
void ClaimRequest(const Answer& answer, ImportContext& context);

// 504 of "token_id:504", which vLLM writes for return_tokens_as_token_ids. Nothing of other texts.
std::optional<int32_t> IdInText(std::string_view text);

// What an answer says of one completion.
struct Completion {
  std::vector<int32_t> prompt_ids, ids;
  std::vector<float> logprobs;                                        // [ids]
  std::vector<std::vector<std::pair<int32_t, float>>> most_probable;  // [ids], or empty
};

// Fills the row's ids, prompt length, behaviour_logprobs and top tokens.
//   INVALID_ARGUMENT  numbers of ids and log-probs differ
absl::Status FillRow(const Completion& completion, std::string_view logprobs_field, RecordRow& row);

}  // namespace tandem::drift
