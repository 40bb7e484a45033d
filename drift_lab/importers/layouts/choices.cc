#include "drift_lab/importers/layouts/choices.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/importers/item_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

constexpr const char* kTopsAreTexts = "top_logprobs are of texts without token ids: left out";

std::optional<int32_t> IdOfEntry(const json& entry) {
  const json* id = FindField(entry, "id");
  if (id != nullptr) return IdIn(*id);
  const json* token = FindField(entry, "token");
  return token != nullptr && token->is_string() ? IdInText(token->get_ref<const std::string&>())
                                                : std::nullopt;
}

// Tops of one token; nothing if one of them has no id.
std::optional<std::vector<std::pair<int32_t, float>>> TopsOfEntry(const json& entry) {
  std::vector<std::pair<int32_t, float>> tops;
  const json* list = FindField(entry, "top_logprobs");
  if (list == nullptr || !list->is_array()) return tops;
  for (const json& top : *list) {
    const std::optional<int32_t> id = IdOfEntry(top);
    const json* logprob = FindField(top, "logprob");
    if (!id || logprob == nullptr) return std::nullopt;
    const absl::StatusOr<float> number = ReadFloat(*logprob, "top_logprobs");
    if (!number.ok()) return std::nullopt;
    tops.emplace_back(*id, *number);
  }
  return tops;
}

// What the form of either endpoint says of the drawn tokens. `ids` has as many as could be told.
struct ChoiceLogprobs {
  Completion completion;
  bool has_ids = true;
  const char* field = "";
};

// /v1/chat/completions and /inference/v1/generate: logprobs.content[].
absl::Status ReadContent(const json& content, ImportContext& context, ChoiceLogprobs& out) {
  out.field = "logprobs.content";
  bool has_tops = false, tops_have_ids = true;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string field = absl::StrCat("logprobs.content[", i, "].logprob");
    const json* logprob = FindField(content[i], "logprob");
    if (logprob == nullptr) return InvalidArgument(field, ": expected a number, found nothing");
    TANDEM_ASSIGN_OR_RETURN(const float value, ReadFloat(*logprob, field));
    out.completion.logprobs.push_back(value);
    const std::optional<int32_t> id = IdOfEntry(content[i]);
    out.has_ids = out.has_ids && id.has_value();
    out.completion.ids.push_back(id.value_or(-1));
    auto tops = TopsOfEntry(content[i]);
    tops_have_ids = tops_have_ids && tops.has_value();
    has_tops = has_tops || !tops || !tops->empty();
    out.completion.most_probable.push_back(tops ? *std::move(tops)
                                                : std::vector<std::pair<int32_t, float>>());
  }
  if (has_tops && !tops_have_ids) context.Note(kTopsAreTexts);
  if (!has_tops || !tops_have_ids) out.completion.most_probable.clear();
  return absl::OkStatus();
}

// /v1/completions: logprobs.tokens and logprobs.token_logprobs.
absl::Status ReadParallel(const json& logprobs, ImportContext& context, ChoiceLogprobs& out) {
  out.field = "logprobs.token_logprobs";
  TANDEM_ASSIGN_OR_RETURN(const json* values, NeedField(logprobs, "token_logprobs", "a list"));
  TANDEM_ASSIGN_OR_RETURN(out.completion.logprobs, ReadFloats(*values, out.field));
  const json* tokens = FindField(logprobs, "tokens");
  out.has_ids = tokens != nullptr && tokens->is_array();
  if (out.has_ids) {
    for (const json& token : *tokens) {
      const std::optional<int32_t> id =
          token.is_string() ? IdInText(token.get_ref<const std::string&>()) : std::nullopt;
      out.has_ids = out.has_ids && id.has_value();
      out.completion.ids.push_back(id.value_or(-1));
    }
  }
  const json* tops = FindField(logprobs, "top_logprobs");
  if (tops == nullptr || !tops->is_array()) return absl::OkStatus();
  for (const json& top : *tops) {
    auto& sorted = out.completion.most_probable.emplace_back();
    if (!top.is_object()) continue;
    for (const auto& [text, value] : top.items()) {
      const std::optional<int32_t> id = IdInText(text);
      const absl::StatusOr<float> number = ReadFloat(value, "top_logprobs");
      if (!id || !number.ok()) {
        context.Note(kTopsAreTexts);
        out.completion.most_probable.clear();
        return absl::OkStatus();
      }
      sorted.emplace_back(*id, *number);
    }
    std::ranges::sort(sorted, {}, [](const auto& entry) { return -entry.second; });
  }
  return absl::OkStatus();
}

absl::StatusOr<ChoiceLogprobs> ReadChoice(const json& choice, ImportContext& context) {
  TANDEM_ASSIGN_OR_RETURN(const json* logprobs,
                          NeedField(choice, "logprobs", "log-probs (ask for logprobs)"));
  ChoiceLogprobs out;
  if (const json* content = FindField(*logprobs, "content");
      content != nullptr && content->is_array()) {
    TANDEM_RETURN_IF_ERROR(ReadContent(*content, context, out));
  } else {
    TANDEM_RETURN_IF_ERROR(ReadParallel(*logprobs, context, out));
  }
  const json* ids = FindField(choice, "token_ids");
  if (ids != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(out.completion.ids, ReadIds(*ids, "token_ids"));
    out.has_ids = true;
  }
  return out;
}

absl::StatusOr<std::vector<int32_t>> PromptOf(const Answer& answer, const json& choice,
                                              std::string_view how_to_get_ids) {
  for (const json* place : {&choice, answer.response}) {
    const json* ids = FindField(*place, "prompt_token_ids");
    if (ids != nullptr) return ReadIds(*ids, "prompt_token_ids");
  }
  TANDEM_ASSIGN_OR_RETURN(auto requested, RequestedIds(answer));
  if (requested) return *std::move(requested);
  return InvalidArgument(
      "prompt_token_ids: expected the prompt's token ids, found none in the answer and no request "
      "with ids beside it ({\"request\": ..., \"response\": ...}); ",
      how_to_get_ids);
}

absl::Status AddChoice(const Answer& answer, const json& choice, std::string_view how_to_get_ids,
                       ImportContext& context) {
  TANDEM_ASSIGN_OR_RETURN(ChoiceLogprobs read, ReadChoice(choice, context));
  if (!read.has_ids) {
    return InvalidArgument("token_ids: expected the drawn tokens' ids, found texts only; ",
                           how_to_get_ids);
  }
  TANDEM_ASSIGN_OR_RETURN(read.completion.prompt_ids, PromptOf(answer, choice, how_to_get_ids));
  RecordRow row;
  TANDEM_RETURN_IF_ERROR(FillRow(read.completion, read.field, row));
  row.facts.finish_reason = TextOf(choice, "finish_reason");
  row.facts.completion_text =
      TextOf(choice, FindField(choice, "message") == nullptr ? "text" : "message.content");
  const json* version = FindField(*answer.response, "metadata.weight_version");
  if (version != nullptr) {
    const absl::StatusOr<int64_t> number = ReadInt(*version, "metadata.weight_version");
    if (number.ok()) row.weight_version = *number;
  }
  const std::string id =
      TextOf(*answer.response, FindField(*answer.response, "id") == nullptr ? "request_id" : "id");
  row.facts.group_id = id;
  row.facts.row_id = absl::StrCat(id, "/", TextOf(choice, "index"));
  return context.Add(std::move(row));
}

}  // namespace

absl::Status AddChoices(const Answer& answer, std::string_view how_to_get_ids,
                        ImportContext& context) {
  const json* choices = FindField(*answer.response, "choices");
  if (choices == nullptr || !choices->is_array()) {
    return InvalidArgument("choices: expected a list, found ",
                           choices == nullptr ? "nothing" : Described(*choices));
  }
  // A server's own name for a model is no name of weights; the Hub's have a slash.
  const std::string model = TextOf(*answer.response, "model");
  if (absl::StrContains(model, "/")) context.Claim("model", model);
  for (size_t i = 0; i < choices->size(); ++i) {
    const absl::Status added = AddChoice(answer, (*choices)[i], how_to_get_ids, context);
    if (!added.ok()) return InvalidArgument("choices[", i, "].", added.message());
  }
  return absl::OkStatus();
}

}  // namespace tandem::drift
