#include "rollout_server/http/answer_form.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rollout_server/engine/sampling/completion.h"

namespace tandem::rollout {
namespace {

constexpr double kLeastLogprob = -9999;  // for minus infinity, which JSON has not; as vLLM does

Json LogprobJson(float logprob) { return std::max<double>(logprob, kLeastLogprob); }

std::string TokenText(const AnswerContext& context, int32_t id) {
  if (context.rules.tokens_as_ids) return absl::StrCat("token_id:", id);
  return CompletionText(*context.text.tokenizer, {&id, 1}).value_or("");
}

int64_t CodePoints(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

Json BytesJson(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

// The prompt's tokens as a completion's are shown. The first has no log-prob.
std::vector<ShownToken> PromptTokens(const AnswerContext& context, size_t prompt) {
  const std::vector<int32_t>& ids = context.job.prompts[prompt];
  const SequenceScore* const score =
      prompt < context.prompt_scores.size() ? &context.prompt_scores[prompt] : nullptr;
  std::vector<ShownToken> tokens;
  for (size_t t = 0; t < ids.size(); ++t) {
    ShownToken token = {.id = ids[t], .logprob = NAN};
    if (t > 0 && score != nullptr && !score->raw_logprobs.empty()) {
      token.logprob = score->raw_logprobs[t];
      if (!score->top.empty()) token.top = score->top[t];
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The log-probs of OpenAI's completions: four arrays.
class ArrayLogprobs {
 public:
  ArrayLogprobs(const AnswerContext& context, int64_t offset)
      : context_(context), offset_(offset) {}

  void Add(const std::vector<ShownToken>& tokens) {
    for (const ShownToken& token : tokens) {
      const std::string text = TokenText(context_, token.id);
      texts_.push_back(text);
      offsets_.push_back(offset_);
      offset_ += CodePoints(text);
      if (std::isnan(token.logprob)) {
        logprobs_.push_back(nullptr);
        tops_.push_back(nullptr);
        continue;
      }
      logprobs_.push_back(LogprobJson(token.logprob));
      Json top = Json::object();
      for (const TopLogprob& one : token.top) {
        top.emplace(TokenText(context_, one.id), LogprobJson(one.logprob));
      }
      top.emplace(text, LogprobJson(token.logprob));  // unless it is among them
      tops_.push_back(std::move(top));
    }
  }

  Json Take() {
    return {{"text_offset", std::move(offsets_)},
            {"token_logprobs", std::move(logprobs_)},
            {"tokens", std::move(texts_)},
            {"top_logprobs", std::move(tops_)}};
  }

 private:
  const AnswerContext& context_;
  int64_t offset_;
  Json offsets_ = Json::array(), logprobs_ = Json::array(), texts_ = Json::array(),
       tops_ = Json::array();
};

// The log-probs of OpenAI's chat completions: an entry for each token.
Json EntryLogprobs(const AnswerContext& context, const std::vector<ShownToken>& tokens) {
  Json content = Json::array();
  const auto entry = [&](int32_t id, float logprob) -> Json {
    const std::string text = TokenText(context, id);
    return {{"token", text}, {"logprob", LogprobJson(logprob)}, {"bytes", BytesJson(text)}};
  };
  for (const ShownToken& token : tokens) {
    Json one = entry(token.id, token.logprob);
    one["top_logprobs"] = Json::array();
    for (const TopLogprob& top : token.top) {
      one["top_logprobs"].push_back(entry(top.id, top.logprob));
    }
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

// vLLM's prompt_logprobs: a null for the first token, then an object by id.
Json PromptLogprobs(const AnswerContext& context, size_t prompt) {
  Json list = Json::array();
  const std::vector<ShownToken> tokens = PromptTokens(context, prompt);
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (std::isnan(tokens[t].logprob)) {
      list.push_back(nullptr);
      continue;
    }
    Json ids = Json::object();
    const int32_t rank = context.prompt_scores[prompt].ranks[t] + 1;
    const auto add = [&](int32_t id, float logprob, int64_t at) {
      ids[absl::StrCat(id)] = {{"logprob", LogprobJson(logprob)},
                               {"rank", at},
                               {"decoded_token", TokenText(context, id)}};
    };
    add(tokens[t].id, tokens[t].logprob, rank);
    for (size_t i = 0; i < tokens[t].top.size(); ++i) {
      if (tokens[t].top[i].id == tokens[t].id) continue;
      add(tokens[t].top[i].id, tokens[t].top[i].logprob, static_cast<int64_t>(i) + 1);
    }
    list.push_back(std::move(ids));
  }
  return list;
}

Json IdsJson(const std::vector<ShownToken>& tokens) {
  Json ids = Json::array();
  for (const ShownToken& token : tokens) ids.push_back(token.id);
  return ids;
}

Json FinishReasonJson(const FinishedCompletion* finished) {
  if (finished == nullptr) return nullptr;
  switch (finished->finish_reason) {
    case FinishReason::kStop:
    case FinishReason::kStopString:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStoppedEarly:
      return "abort";
  }
  return nullptr;
}

// What stopped it, as vLLM has it: a stop string, the id of a stop token, or null for an end token.
Json StopReasonJson(const AnswerContext& context, const FinishedCompletion* finished) {
  if (finished == nullptr) return nullptr;
  if (finished->finish_reason == FinishReason::kStop) {
    const int32_t last = finished->token_ids.back();
    return std::ranges::find(context.eos_token_ids, last) != context.eos_token_ids.end()
               ? Json()
               : Json(last);
  }
  if (finished->finish_reason != FinishReason::kStopString) return nullptr;
  return StopStringOf(context.text, *finished);
}

Json VersionsJson(const FinishedCompletion& finished) {
  Json spans = Json::array();
  for (const VersionSpan& span : finished.version_spans) {
    spans.push_back({{"weight_version", span.version.value}, {"num_tokens", span.num_tokens}});
  }
  return spans;
}

// What all forms show of a choice besides its text.
void AddCommon(const AnswerContext& context, const ShownChoice& shown, Json* json) {
  (*json)["finish_reason"] = FinishReasonJson(shown.finished);
  (*json)["stop_reason"] = StopReasonJson(context, shown.finished);
  if (!context.rules.token_ids) return;
  (*json)["token_ids"] = IdsJson(shown.tokens);
  if (shown.finished != nullptr) (*json)["weight_versions"] = VersionsJson(*shown.finished);
}

size_t PromptOf(const AnswerContext& context, size_t choice) {
  return choice / static_cast<size_t>(context.job.num_completions);
}

Json Envelope(const AnswerContext& context, const char* object, Json choices, Json usage) {
  Json json = {{"id", context.id},
               {"object", object},
               {"created", context.created},
               {"model", context.model},
               {"system_fingerprint", context.fingerprint},
               {"choices", std::move(choices)}};
  if (!usage.is_null()) json["usage"] = std::move(usage);
  return json;
}

class Completions : public AnswerForm {
 public:
  Json Choice(const AnswerContext& context, const ShownChoice& shown) const override {
    const size_t prompt = PromptOf(context, shown.choice);
    const std::vector<int32_t>& ids = context.job.prompts[prompt];
    const bool echo = context.rules.echo && shown.is_first;
    std::string before;
    if (context.rules.echo) before = context.text.decode()(ids).value_or("");
    Json json = {{"index", shown.choice}, {"text", echo ? before + shown.text : shown.text}};
    json["logprobs"] = nullptr;
    if (context.rules.logprobs) {
      ArrayLogprobs logprobs(context,
                             shown.is_first ? 0 : CodePoints(before) + shown.num_characters_before);
      if (echo) logprobs.Add(PromptTokens(context, prompt));
      logprobs.Add(shown.tokens);
      json["logprobs"] = logprobs.Take();
    }
    AddCommon(context, shown, &json);
    if (shown.is_first && context.rules.token_ids) json["prompt_token_ids"] = ids;
    if (shown.is_first && context.rules.prompt_logprobs) {
      json["prompt_logprobs"] = PromptLogprobs(context, prompt);
    }
    return json;
  }
  Json Delta(const AnswerContext& context, const ShownChoice& shown) const override {
    return Choice(context, shown);
  }
  Json Whole(const AnswerContext& context, Json choices, Json usage) const override {
    return Envelope(context, "text_completion", std::move(choices), std::move(usage));
  }
  Json Piece(const AnswerContext& context, Json choices, Json usage, bool) const override {
    return Whole(context, std::move(choices), std::move(usage));
  }
};

class Chat : public AnswerForm {
 public:
  Json Choice(const AnswerContext& context, const ShownChoice& shown) const override {
    Json message = {{"role", "assistant"}, {"content", shown.text}};
    if (!shown.calls.empty()) {
      if (shown.text.empty()) message["content"] = nullptr;
      message["tool_calls"] = Calls(context, shown, /*with_index=*/false);
    }
    Json json = {{"index", shown.choice}, {"message", std::move(message)}};
    AddTokens(context, shown, &json);
    return json;
  }
  Json Delta(const AnswerContext& context, const ShownChoice& shown) const override {
    Json delta = Json::object();
    if (shown.is_first) delta["role"] = "assistant";
    if (shown.is_first || !shown.text.empty()) delta["content"] = shown.text;
    if (!shown.calls.empty()) {
      delta["tool_calls"] = Calls(context, shown, /*with_index=*/true);
    }
    Json json = {{"index", shown.choice}, {"delta", std::move(delta)}};
    AddTokens(context, shown, &json);
    return json;
  }
  Json Whole(const AnswerContext& context, Json choices, Json usage) const override {
    Json json = Envelope(context, "chat.completion", std::move(choices), std::move(usage));
    AddPrompt(context, &json);
    return json;
  }
  Json Piece(const AnswerContext& context, Json choices, Json usage, bool is_first) const override {
    Json json = Envelope(context, "chat.completion.chunk", std::move(choices), std::move(usage));
    if (is_first) AddPrompt(context, &json);
    return json;
  }

 private:
  static Json Calls(const AnswerContext& context, const ShownChoice& shown, bool with_index) {
    Json calls = Json::array();
    for (size_t i = 0; i < shown.calls.size(); ++i) {
      const ToolCall& call = shown.calls[i];
      Json one = Json::object();
      if (with_index) one["index"] = i;
      one["id"] = absl::StrCat("call-", context.id, "-", shown.choice, "-", i);
      one["type"] = "function";
      one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
      calls.push_back(std::move(one));
    }
    return calls;
  }
  static void AddTokens(const AnswerContext& context, const ShownChoice& shown, Json* json) {
    (*json)["logprobs"] = context.rules.logprobs ? EntryLogprobs(context, shown.tokens) : Json();
    AddCommon(context, shown, json);
    if (!shown.calls.empty() && (*json)["finish_reason"] == "stop") {
      (*json)["finish_reason"] = "tool_calls";
    }
  }
  static void AddPrompt(const AnswerContext& context, Json* json) {
    if (context.rules.token_ids) (*json)["prompt_token_ids"] = context.job.prompts[0];
    if (context.rules.prompt_logprobs) (*json)["prompt_logprobs"] = PromptLogprobs(context, 0);
  }
};

class Generate : public AnswerForm {
 public:
  Json Choice(const AnswerContext& context, const ShownChoice& shown) const override {
    Json json = {{"index", shown.choice}};
    json["logprobs"] = context.rules.logprobs ? EntryLogprobs(context, shown.tokens) : Json();
    AddCommon(context, shown, &json);
    return json;
  }
  Json Delta(const AnswerContext& context, const ShownChoice& shown) const override {
    return Choice(context, shown);
  }
  Json Whole(const AnswerContext& context, Json choices, Json usage) const override {
    Json json = {{"request_id", context.id},
                 {"model", context.model},
                 {"created", context.created},
                 {"choices", std::move(choices)},
                 {"prompt_token_ids", context.job.prompts[0]}};
    json["prompt_logprobs"] = context.rules.prompt_logprobs ? PromptLogprobs(context, 0) : Json();
    if (!usage.is_null()) json["usage"] = std::move(usage);
    return json;
  }
  Json Piece(const AnswerContext& context, Json choices, Json usage, bool) const override {
    Json json = {{"request_id", context.id}, {"choices", std::move(choices)}};
    if (!usage.is_null()) json["usage"] = std::move(usage);
    return json;
  }
};

}  // namespace

const AnswerForm& CompletionsForm() {
  static const Completions form;
  return form;
}

const AnswerForm& ChatForm() {
  static const Chat form;
  return form;
}

const AnswerForm& GenerateForm() {
  static const Generate form;
  return form;
}

Json UsageJson(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"completion_tokens", completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

std::vector<ShownToken> TokensOf(const AnswerRules& rules, const FinishedCompletion& completion) {
  std::vector<ShownToken> tokens;
  tokens.reserve(completion.token_ids.size());
  const std::vector<float>& logprobs =
      rules.raw_logprobs ? completion.raw_logprobs : completion.behaviour_logprobs;
  for (size_t t = 0; t < completion.token_ids.size(); ++t) {
    tokens.push_back({completion.token_ids[t], logprobs[t], {}});
    if (!completion.top.empty()) tokens.back().top = completion.top[t];
  }
  return tokens;
}

}  // namespace tandem::rollout
