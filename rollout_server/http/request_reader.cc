#include "rollout_server/http/request_reader.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "rollout_server/http/json_fields.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kOpenAiMaxTokens = 16;  // of a completion, where none are named

// Checks what fields can only tell together, after all were read.
absl::Status Finish(const ModelFacts& facts, const JsonFields& fields, AnswerContext* context) {
  TANDEM_RETURN_IF_ERROR(fields.status());
  const SamplingParams& s = context->job.sampling;
  if (s.min_new_tokens > s.max_new_tokens) {
    return BadField("min_tokens", absl::StrCat("min_tokens is ", s.min_new_tokens,
                                               ", more than max_tokens ", s.max_new_tokens));
  }
  const bool same =
      s.temperature == 0 || (s.temperature == 1 && s.top_k == 0 && s.top_p == 1 && s.min_p == 0);
  if (context->rules.raw_logprobs && context->rules.top_logprobs > 0 && !same) {
    return BadField("logprobs_mode",
                    "raw_logprobs of the most likely ids are not recorded where temperature or "
                    "filters change the distribution: ask for the drawn tokens' alone");
  }
  const std::vector<std::string> unknown = fields.Unknown();
  if (!unknown.empty()) {
    log::Debug("fields of a request that are not known are ignored",
               {{"fields", absl::StrJoin(unknown, ", ")}});
  }
  return CheckContext(facts, context->job);
}

void ReadPromptLogprobs(JsonFields& fields, AnswerContext* context) {
  const auto count = fields.Integer("prompt_logprobs", 0, kMaxTopLogprobs);
  if (!count) return;
  context->rules.prompt_logprobs = context->job.score_prompts = true;
  context->job.prompt_top_logprobs = static_cast<int32_t>(*count);
}

void ReadLogprobCount(JsonFields& fields, const char* name, AnswerContext* context) {
  const auto count = fields.Integer(name, 0, kMaxTopLogprobs);
  if (!count) return;
  context->rules.logprobs = true;
  context->rules.top_logprobs = static_cast<int32_t>(*count);
  context->job.sampling.top_logprobs = context->rules.top_logprobs;
}

}  // namespace

ModelFacts FactsOf(const ServiceParts& parts, const std::string& name, const std::string& root) {
  ModelFacts facts = {.name = name,
                      .root = root,
                      .vocab_size = parts.model->config.vocab_size,
                      .context_tokens = parts.model->config.max_position_embeddings,
                      .kv_capacity_tokens = parts.engine->stats().kv_capacity_tokens,
                      .max_completions = parts.model->options.max_batch_sequences};
  for (const auto& [adapter, directory] : parts.model->options.lora_modules) {
    facts.adapters.push_back(adapter);
  }
  return facts;
}

absl::StatusOr<AnswerContext> RequestReader::ReadCompletions(const std::string& body) const {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  JsonFields fields(json);
  AnswerContext context;
  TANDEM_RETURN_IF_ERROR(ReadModel(fields, facts_, &context.job));
  ReadSampling(fields, facts_, &context.job, &context.rules);
  ReadDelivery(fields, &context.rules);
  context.rules.echo = fields.Flag("echo").value_or(false);
  ReadLogprobCount(fields, "logprobs", &context);
  ReadPromptLogprobs(fields, &context);
  if (context.rules.echo && context.rules.logprobs) {
    context.job.score_prompts = true;
    context.job.prompt_top_logprobs =
        std::max(context.job.prompt_top_logprobs, context.rules.top_logprobs);
  }
  fields.Unsupported(
      "suffix", [](const Json& text) { return text == ""; }, "");
  fields.Unsupported(
      "best_of", [&](const Json& of) { return of == context.job.num_completions; },
      "all completions are returned");
  const bool only_scores = context.rules.echo || context.rules.prompt_logprobs;
  const auto most = fields.Integer("max_tokens", only_scores ? 0 : 1, kMostTokens);
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_ASSIGN_OR_RETURN(context.job.prompts, prompts_.ReadPrompts(fields, facts_));
  context.job.sampling.max_new_tokens = static_cast<int32_t>(most.value_or(kOpenAiMaxTokens));
  TANDEM_RETURN_IF_ERROR(Finish(facts_, fields, &context));
  return context;
}

absl::StatusOr<AnswerContext> RequestReader::ReadChat(const std::string& body) const {
  return ReadChatBody(body, /*with_ids=*/false);
}

absl::StatusOr<AnswerContext> RequestReader::ReadChatOfIds(const std::string& body) const {
  return ReadChatBody(body, /*with_ids=*/true);
}

absl::StatusOr<AnswerContext> RequestReader::ReadChatBody(const std::string& body,
                                                          bool with_ids) const {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  JsonFields fields(json);
  AnswerContext context;
  TANDEM_RETURN_IF_ERROR(ReadModel(fields, facts_, &context.job));
  ReadSampling(fields, facts_, &context.job, &context.rules);
  ReadDelivery(fields, &context.rules);
  context.rules.logprobs = fields.Flag("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !context.rules.logprobs) {
    fields.Fail("top_logprobs", "top_logprobs without logprobs: true");
  }
  context.rules.top_logprobs = static_cast<int32_t>(top.value_or(0));
  context.job.sampling.top_logprobs = context.rules.top_logprobs;
  ReadPromptLogprobs(fields, &context);
  for (const char* name : {"functions", "function_call", "audio", "modalities", "prediction"}) {
    fields.Unsupported(
        name, [](const Json& value) { return value == Json::array({"text"}); }, "");
  }
  fields.Ignore({"reasoning_effort", "include_reasoning"});
  auto most = fields.Integer("max_completion_tokens", 1, kMostTokens);
  if (const auto other = fields.Integer("max_tokens", 1, kMostTokens); !most) most = other;
  if (OffersTools(fields)) {
    context.rules.tool_calls = true;
    // The tags of calls are special tokens of some models.
    if (fields.Find("skip_special_tokens") == nullptr) context.rules.skip_special_tokens = false;
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> prompt,
                          with_ids ? ReadIds(fields, "tokens") : prompts_.ReadChat(fields));
  const int64_t size = std::ssize(prompt);
  context.job.prompts.push_back(std::move(prompt));
  context.job.sampling.max_new_tokens =
      most ? static_cast<int32_t>(*most) : RoomFor(facts_, size, context.job.num_completions);
  TANDEM_RETURN_IF_ERROR(Finish(facts_, fields, &context));
  return context;
}

absl::StatusOr<std::vector<int32_t>> RequestReader::ReadIds(JsonFields& fields,
                                                            const std::string& name) const {
  auto ids = fields.Ids(name, 0, facts_.vocab_size - 1);
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (!ids || ids->empty()) return BadField(name, name + " is missing, want at least one token id");
  return *std::move(ids);
}

absl::StatusOr<AnswerContext> RequestReader::ReadGenerate(const std::string& body) const {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  JsonFields fields(json);
  AnswerContext context;
  TANDEM_RETURN_IF_ERROR(ReadModel(fields, facts_, &context.job));
  ReadDelivery(fields, &context.rules);
  const std::string request_id = fields.Text("request_id").value_or("");
  const std::string salt = fields.Text("cache_salt").value_or("");
  const int64_t priority = fields.Integer("priority", -(1 << 30), 1 << 30).value_or(0);
  fields.Unsupported(
      "features", [](const Json& value) { return value.empty(); }, "this model reads text only");
  fields.Unsupported(
      "kv_transfer_params", [](const Json& value) { return value.empty(); }, "");
  fields.Ignore({"session_id"});
  const Json* const sampling = fields.Find("sampling_params");
  TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadIds(fields, "token_ids"));
  const Json none = Json::object();
  if (sampling != nullptr && !sampling->is_object()) {
    return BadField("sampling_params", "sampling_params is no object");
  }
  JsonFields inner(sampling == nullptr ? none : *sampling, "sampling_params.");
  ReadSampling(inner, facts_, &context.job, &context.rules);
  ReadLogprobCount(inner, "logprobs", &context);
  ReadPromptLogprobs(inner, &context);
  const auto most = inner.Integer("max_tokens", 1, kMostTokens);
  TANDEM_RETURN_IF_ERROR(inner.status());
  context.rules.token_ids = context.rules.tokens_as_ids = true;
  context.job.request_id = request_id;
  context.job.cache_salt = salt;
  context.job.priority = static_cast<int32_t>(-priority);
  const int64_t size = std::ssize(ids);
  context.job.prompts.push_back(std::move(ids));
  context.job.sampling.max_new_tokens =
      most ? static_cast<int32_t>(*most) : RoomFor(facts_, size, context.job.num_completions);
  TANDEM_RETURN_IF_ERROR(Finish(facts_, inner, &context));
  return context;
}

}  // namespace tandem::rollout
