#include "drift_lab/importers/layouts/engine_answers.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/importers/item_fields.h"
#include "drift_lab/importers/layouts/answer_parts.h"
#include "drift_lab/importers/layouts/choices.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

// ---- vLLM's RequestOutput

// One token's log-probs: an object of ids to {"logprob", "rank"}, or to numbers.
struct RankedToken {
  int64_t rank = 0;  // 1 for the most probable; 0 where it is not said
  int32_t id = 0;
  float logprob = 0;
};

absl::StatusOr<std::vector<RankedToken>> RankedTokens(const json& token, std::string_view field) {
  if (!token.is_object()) {
    return InvalidArgument(field, ": expected an object of token ids, found ", Described(token));
  }
  std::vector<RankedToken> ranked;
  for (const auto& [key, value] : token.items()) {
    RankedToken entry;
    if (!absl::SimpleAtoi(key, &entry.id)) {
      return InvalidArgument(field, ": expected token ids as names, found \"", key, "\"");
    }
    const json* logprob = value.is_object() ? FindField(value, "logprob") : &value;
    if (logprob == nullptr) return InvalidArgument(field, ": expected logprob, found nothing");
    TANDEM_ASSIGN_OR_RETURN(entry.logprob, ReadFloat(*logprob, field));
    const json* rank = value.is_object() ? FindField(value, "rank") : nullptr;
    if (rank != nullptr && rank->is_number_integer()) entry.rank = rank->get<int64_t>();
    ranked.push_back(entry);
  }
  std::ranges::sort(ranked, {}, [](const RankedToken& entry) {
    return std::tuple(entry.rank, -entry.logprob, entry.id);
  });
  return ranked;
}

// The K most probable of a list that may also hold the drawn token, whose rank is beyond K.
std::vector<std::pair<int32_t, float>> MostProbable(const std::vector<RankedToken>& ranked) {
  std::vector<std::pair<int32_t, float>> top;
  for (const RankedToken& entry : ranked) {
    if (entry.rank != static_cast<int64_t>(top.size()) + 1) break;
    top.emplace_back(entry.id, entry.logprob);
  }
  return top;
}

absl::Status ReadOutput(const json& output, Completion& completion) {
  TANDEM_ASSIGN_OR_RETURN(const json* ids, NeedField(output, "token_ids", "the drawn token ids"));
  TANDEM_ASSIGN_OR_RETURN(completion.ids, ReadIds(*ids, "token_ids"));
  TANDEM_ASSIGN_OR_RETURN(
      const json* logprobs,
      NeedField(output, "logprobs", "log-probs (SamplingParams(logprobs=0) gives the drawn ones)"));
  if (!logprobs->is_array() || logprobs->size() != completion.ids.size()) {
    return InvalidArgument("logprobs: expected a list of ", completion.ids.size(),
                           ", one object for each of token_ids, found ", Described(*logprobs));
  }
  for (size_t t = 0; t < logprobs->size(); ++t) {
    const std::string field = absl::StrCat("logprobs[", t, "]");
    TANDEM_ASSIGN_OR_RETURN(const auto ranked, RankedTokens((*logprobs)[t], field));
    const auto drawn = std::ranges::find(ranked, completion.ids[t], &RankedToken::id);
    if (drawn == ranked.end()) {
      return InvalidArgument(field, ": expected an entry for the drawn token ", completion.ids[t],
                             ", found none");
    }
    completion.logprobs.push_back(drawn->logprob);
    completion.most_probable.push_back(MostProbable(ranked));
  }
  const bool none =
      std::ranges::all_of(completion.most_probable, [](const auto& top) { return top.empty(); });
  if (none) completion.most_probable.clear();
  return absl::OkStatus();
}

absl::Status AddRequestOutput(const json& output, ImportContext& context) {
  TANDEM_ASSIGN_OR_RETURN(const json* prompt,
                          NeedField(output, "prompt_token_ids", "the prompt's token ids"));
  TANDEM_ASSIGN_OR_RETURN(const auto prompt_ids, ReadIds(*prompt, "prompt_token_ids"));
  const json* outputs = FindField(output, "outputs");
  for (size_t i = 0; i < outputs->size(); ++i) {
    const json& one = (*outputs)[i];
    Completion completion{.prompt_ids = prompt_ids};
    RecordRow row;
    absl::Status read = ReadOutput(one, completion);
    if (read.ok()) read = FillRow(completion, "logprobs", row);
    if (!read.ok()) return InvalidArgument("outputs[", i, "].", read.message());
    row.facts.finish_reason = TextOf(one, "finish_reason");
    row.facts.group_id = TextOf(output, "request_id");
    row.facts.row_id = absl::StrCat(row.facts.group_id, "/", i);
    row.facts.prompt_text = TextOf(output, "prompt");
    row.facts.completion_text = TextOf(one, "text");
    TANDEM_RETURN_IF_ERROR(context.Add(std::move(row)));
  }
  return absl::OkStatus();
}

// ---- SGLang

// [[log-prob, id, text or null], ...]
absl::Status ReadTriples(const json& triples, std::string_view field, std::vector<int32_t>& ids,
                         std::vector<float>& logprobs) {
  if (!triples.is_array()) {
    return InvalidArgument(field, ": expected a list, found ", Described(triples));
  }
  for (size_t i = 0; i < triples.size(); ++i) {
    const json& triple = triples[i];
    const std::optional<int32_t> id =
        triple.is_array() && triple.size() >= 2 ? IdIn(triple[1]) : std::nullopt;
    if (!id) {
      return InvalidArgument(field, ": expected [log-prob, id, text], found ", Described(triple),
                             " at element ", i);
    }
    TANDEM_ASSIGN_OR_RETURN(const float logprob, ReadFloat(triple[0], field));
    ids.push_back(*id);
    logprobs.push_back(logprob);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> SglangPrompt(const Answer& answer, const json& meta) {
  TANDEM_ASSIGN_OR_RETURN(auto requested, RequestedIds(answer));
  if (requested) return *std::move(requested);
  std::vector<int32_t> ids;
  std::vector<float> unused;
  const json* triples = FindField(meta, "input_token_logprobs");
  if (triples == nullptr) {
    return InvalidArgument(
        "meta_info.input_token_logprobs: expected the prompt's ids, found nothing; ask with "
        "\"logprob_start_len\": 0, or keep the request: {\"request\": ..., \"response\": ...}");
  }
  TANDEM_RETURN_IF_ERROR(ReadTriples(*triples, "meta_info.input_token_logprobs", ids, unused));
  TANDEM_ASSIGN_OR_RETURN(const auto expected, IntOf(meta, "prompt_tokens"));
  if (expected && *expected != static_cast<int64_t>(ids.size())) {
    return InvalidArgument("meta_info.input_token_logprobs: expected ", *expected,
                           " elements (prompt_tokens), found ", ids.size(),
                           "; ask with \"logprob_start_len\": 0");
  }
  return ids;
}

// Spans [start, end) of drawn tokens, or one version of the whole.
absl::Status SglangVersions(const json& meta, ImportContext& context, RecordRow& row) {
  constexpr const char* kNotNumbers =
      "weight versions are not whole numbers: left out, so that staleness cannot be told";
  const json* spans = FindField(meta, "weight_versions");
  if (spans == nullptr || !spans->is_array()) {
    const json* version = FindField(meta, "weight_version");
    if (version == nullptr) return absl::OkStatus();
    const absl::StatusOr<int64_t> number = ReadInt(*version, "weight_version");
    if (number.ok()) {
      row.weight_version = *number;
    } else {
      context.Note(kNotNumbers);
    }
    return absl::OkStatus();
  }
  for (const json& span : *spans) {
    const json* version = FindField(span, "version");
    const absl::StatusOr<int64_t> number =
        version == nullptr ? absl::NotFoundError("") : ReadInt(*version, "version");
    if (!number.ok()) {
      row.facts.spans.clear();
      context.Note(kNotNumbers);
      return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(const auto start, IntOf(span, "start"));
    TANDEM_ASSIGN_OR_RETURN(const auto end, IntOf(span, "end"));
    if (!start || !end) {
      return InvalidArgument("meta_info.weight_versions: expected start and end of each span");
    }
    if (*end > *start) row.facts.spans.push_back({*number, *end - *start});
  }
  return absl::OkStatus();
}

absl::Status SglangTop(const json& meta, Completion& completion) {
  const json* tops = FindField(meta, "output_top_logprobs");
  if (tops == nullptr || !tops->is_array() || tops->empty()) return absl::OkStatus();
  for (const json& top : *tops) {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    if (!top.is_null()) {
      TANDEM_RETURN_IF_ERROR(ReadTriples(top, "meta_info.output_top_logprobs", ids, logprobs));
    }
    auto& tokens = completion.most_probable.emplace_back();
    for (size_t k = 0; k < ids.size(); ++k) tokens.emplace_back(ids[k], logprobs[k]);
  }
  if (completion.most_probable.size() == completion.ids.size()) return absl::OkStatus();
  return InvalidArgument("meta_info.output_top_logprobs: expected ", completion.ids.size(),
                         " elements, one for each drawn token, found ",
                         completion.most_probable.size());
}

// ---- llama.cpp

absl::StatusOr<int32_t> ReadId(const json& value, std::string_view field) {
  const std::optional<int32_t> id = IdIn(value);
  if (!id) return InvalidArgument(field, ": expected a token id, found ", Described(value));
  return *id;
}

absl::Status LlamaTop(const json& entry, Completion& completion) {
  const json* tops = FindField(entry, "top_logprobs");
  auto& tokens = completion.most_probable.emplace_back();
  if (tops == nullptr || !tops->is_array()) return absl::OkStatus();
  for (const json& top : *tops) {
    const json* id = FindField(top, "id");
    const json* logprob = FindField(top, "logprob");
    if (id == nullptr || logprob == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(const int32_t number, ReadId(*id, "top_logprobs.id"));
    TANDEM_ASSIGN_OR_RETURN(const float value, ReadFloat(*logprob, "top_logprobs.logprob"));
    tokens.emplace_back(number, value);
  }
  return absl::OkStatus();
}

absl::Status ReadProbabilities(const json& entries, Completion& completion) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string field = absl::StrCat("completion_probabilities[", i, "]");
    const json* id = FindField(entries[i], "id");
    const json* logprob = FindField(entries[i], "logprob");
    if (FindField(entries[i], "prob") != nullptr) {
      return InvalidArgument(field,
                             ": expected logprob, found prob: post_sampling_probs rounds small "
                             "probabilities to 0; ask with \"post_sampling_probs\": false");
    }
    if (id == nullptr || logprob == nullptr) {
      return InvalidArgument(field,
                             ": expected id and logprob (of a recent llama.cpp), "
                             "found ",
                             id == nullptr ? "no id" : "no logprob");
    }
    TANDEM_ASSIGN_OR_RETURN(const int32_t number, ReadId(*id, absl::StrCat(field, ".id")));
    TANDEM_ASSIGN_OR_RETURN(const float value,
                            ReadFloat(*logprob, absl::StrCat(field, ".logprob")));
    completion.ids.push_back(number);
    completion.logprobs.push_back(value);
    TANDEM_RETURN_IF_ERROR(LlamaTop(entries[i], completion));
  }
  return absl::OkStatus();
}

// `tokens` is there with return_tokens, and must be what completion_probabilities is of.
absl::Status CheckTokens(const json& response, const Completion& completion) {
  const json* tokens = FindField(response, "tokens");
  if (tokens == nullptr || !tokens->is_array() || tokens->empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const auto ids, ReadIds(*tokens, "tokens"));
  if (ids == completion.ids) return absl::OkStatus();
  return InvalidArgument("tokens: expected the ", completion.ids.size(),
                         " ids of completion_probabilities, found ", ids.size(),
                         ids.size() == completion.ids.size() ? " others" : "");
}

absl::StatusOr<std::vector<int32_t>> LlamaPrompt(const Answer& answer) {
  TANDEM_ASSIGN_OR_RETURN(auto requested, RequestedIds(answer));
  if (requested) return *std::move(requested);
  return InvalidArgument(
      "request.prompt: expected the prompt's token ids, found nothing: llama.cpp's answer has the "
      "prompt's text only. Send ids (of /tokenize) as the prompt, and keep {\"request\": ..., "
      "\"response\": ...}");
}

void ClaimLlama(const json& settings, ImportContext& context) {
  context.ClaimSampling(settings);
  const json* penalty = FindField(settings, "repeat_penalty");
  if (penalty != nullptr && penalty->is_number()) {
    context.Claim("behaviour.repetition_penalty", penalty->dump());
  }
}

}  // namespace

void DescribeVllm(RecordsHeader& header) {
  header.behaviour.engine = "vllm";
  header.columns["behaviour_logprobs"] = {"logprobs of vLLM's answer", "none", "float32"};
}

absl::Status AddVllm(const json& item, ImportContext& context) {
  const Answer answer = AnswerOf(item);
  const json* outputs = FindField(*answer.response, "outputs");
  ClaimRequest(answer, context);
  if (outputs != nullptr && outputs->is_array()) {
    return AddRequestOutput(*answer.response, context);
  }
  return AddChoices(answer,
                    "ask with \"return_token_ids\": true (or \"return_tokens_as_token_ids\": true "
                    "and the prompt as ids)",
                    context);
}

void DescribeSglang(RecordsHeader& header) {
  header.behaviour.engine = "sglang";
  header.columns["behaviour_logprobs"] = {"meta_info.output_token_logprobs", "none", "float32"};
}

absl::Status AddSglang(const json& item, ImportContext& context) {
  const Answer answer = AnswerOf(item);
  ClaimRequest(answer, context);
  TANDEM_ASSIGN_OR_RETURN(const json* meta, NeedField(*answer.response, "meta_info", "an object"));
  TANDEM_ASSIGN_OR_RETURN(const json* triples,
                          NeedField(*meta, "output_token_logprobs",
                                    "log-probs in meta_info (ask with \"return_logprob\": true)"));
  Completion completion;
  TANDEM_RETURN_IF_ERROR(ReadTriples(*triples, "meta_info.output_token_logprobs", completion.ids,
                                     completion.logprobs));
  TANDEM_ASSIGN_OR_RETURN(completion.prompt_ids, SglangPrompt(answer, *meta));
  TANDEM_RETURN_IF_ERROR(SglangTop(*meta, completion));
  if (const json* ids = FindField(*answer.response, "output_ids"); ids != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const auto drawn, ReadIds(*ids, "output_ids"));
    if (drawn != completion.ids) {
      return InvalidArgument("output_ids: expected the ids of meta_info.output_token_logprobs (",
                             completion.ids.size(), "), found ", drawn.size(), " that differ");
    }
  }
  RecordRow row;
  TANDEM_RETURN_IF_ERROR(FillRow(completion, "meta_info.output_token_logprobs", row));
  TANDEM_RETURN_IF_ERROR(SglangVersions(*meta, context, row));
  const json* reason = FindField(*meta, "finish_reason");
  if (reason != nullptr) {
    row.facts.finish_reason =
        reason->is_object() ? TextOf(*reason, "type") : TextOf(*meta, "finish_reason");
  }
  row.facts.row_id = TextOf(*meta, "id");
  row.facts.completion_text = TextOf(*answer.response, "text");
  return context.Add(std::move(row));
}

void DescribeLlamaCpp(RecordsHeader& header) {
  header.behaviour.engine = "llama.cpp";
  // get_token_probabilities of the server takes the softmax of the logits as they are.
  header.behaviour.logprobs = "raw";
  header.columns["behaviour_logprobs"] = {"completion_probabilities.logprob", "none", "float32"};
}

absl::Status AddLlamaCpp(const json& item, ImportContext& context) {
  const Answer answer = AnswerOf(item);
  const json* entries = FindField(*answer.response, "completion_probabilities");
  if (entries == nullptr || !entries->is_array()) {
    ClaimRequest(answer, context);
    if (FindField(*answer.response, "choices") == nullptr) {
      return InvalidArgument(
          "completion_probabilities: expected a list, found nothing; ask with \"n_probs\": 1");
    }
    return AddChoices(answer,
                      "llama-cpp-python answers with texts; ask llama.cpp's own server: "
                      "/completion with \"n_probs\": 1 and the prompt as ids",
                      context);
  }
  Completion completion;
  TANDEM_RETURN_IF_ERROR(ReadProbabilities(*entries, completion));
  TANDEM_RETURN_IF_ERROR(CheckTokens(*answer.response, completion));
  TANDEM_ASSIGN_OR_RETURN(completion.prompt_ids, LlamaPrompt(answer));
  TANDEM_ASSIGN_OR_RETURN(const auto evaluated, IntOf(*answer.response, "tokens_evaluated"));
  if (evaluated && *evaluated != static_cast<int64_t>(completion.prompt_ids.size())) {
    return InvalidArgument("tokens_evaluated: expected ", completion.prompt_ids.size(),
                           ", the ids of request.prompt, found ", *evaluated,
                           ": the server added or dropped tokens");
  }
  RecordRow row;
  TANDEM_RETURN_IF_ERROR(FillRow(completion, "completion_probabilities", row));
  const json* settings = FindField(*answer.response, "generation_settings");
  if (settings != nullptr) {
    ClaimLlama(*settings, context);
  } else {
    ClaimRequest(answer, context);
  }
  row.facts.finish_reason = TextOf(*answer.response, "stop_type");
  row.facts.completion_text = TextOf(*answer.response, "content");
  return context.Add(std::move(row));
}

void DescribeOpenAi(RecordsHeader& header) {
  header.columns["behaviour_logprobs"] = {"logprobs of the answer's choices", "none", ""};
}

absl::Status AddOpenAi(const json& item, ImportContext& context) {
  const Answer answer = AnswerOf(item);
  ClaimRequest(answer, context);
  return AddChoices(
      answer,
      "with vLLM ask with \"return_token_ids\": true; with SGLang use /generate; with "
      "llama.cpp /completion with \"n_probs\": 1",
      context);
}

}  // namespace tandem::drift
