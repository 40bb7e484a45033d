#include "drift_lab/importers/layouts/answer_parts.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/importers/item_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {

using nlohmann::json;

Answer AnswerOf(const json& item) {
  const json* response = FindField(item, "response");
  if (response != nullptr && response->is_object()) {
    return {.response = response, .request = FindField(item, "request")};
  }
  return {.response = &item};
}

absl::StatusOr<std::optional<std::vector<int32_t>>> RequestedIds(const Answer& answer) {
  if (answer.request == nullptr) return std::nullopt;
  for (const char* field : {"prompt", "input_ids", "token_ids"}) {
    const json* ids = FindField(*answer.request, field);
    if (ids == nullptr || !ids->is_array() || ids->empty()) continue;
    if (ids->front().is_array()) {
      return InvalidArgument("request.", field,
                             ": expected the ids of one prompt, found several prompts; keep one "
                             "request and its answer on a line");
    }
    if (!ids->front().is_number()) continue;
    TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> prompt,
                            ReadIds(*ids, absl::StrCat("request.", field)));
    return std::optional(std::move(prompt));
  }
  return std::nullopt;
}

void ClaimRequest(const Answer& answer, ImportContext& context) {
  if (answer.request == nullptr) return;
  context.ClaimSampling(*answer.request);
  const json* parameters = FindField(*answer.request, "sampling_params");
  if (parameters != nullptr) context.ClaimSampling(*parameters);
}

std::optional<int32_t> IdInText(std::string_view text) {
  constexpr std::string_view kPrefix = "token_id:";
  int32_t id = 0;
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &id)) return std::nullopt;
  return id;
}

absl::Status FillRow(const Completion& completion, std::string_view logprobs_field,
                     RecordRow& row) {
  const size_t num_prompt = completion.prompt_ids.size();
  const size_t num_drawn = completion.ids.size();
  if (completion.logprobs.size() != num_drawn) {
    return InvalidArgument(logprobs_field, ": expected ", num_drawn,
                           " elements, one for each drawn token, found ",
                           completion.logprobs.size());
  }
  row.token_ids = completion.prompt_ids;
  row.token_ids.insert(row.token_ids.end(), completion.ids.begin(), completion.ids.end());
  row.prompt_length = static_cast<int64_t>(num_prompt);
  row.column(Column::kBehaviour) = Placed(completion.logprobs, num_prompt);
  if (completion.most_probable.empty()) return absl::OkStatus();
  RowTopTokens& top = row.behaviour_top;
  top.num_ids.assign(num_prompt, 0);
  for (const auto& tokens : completion.most_probable) {
    top.num_ids.push_back(static_cast<int32_t>(tokens.size()));
    for (const auto& [id, logprob] : tokens) {
      top.ids.push_back(id);
      top.logprobs.push_back(logprob);
    }
  }
  top.num_logprobs = top.num_ids;
  return absl::OkStatus();
}

}  // namespace tandem::drift
