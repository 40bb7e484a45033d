// RequestReader: the bodies of requests for completions, as jobs with what their answers show.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "rollout_server/http/answer_form.h"
#include "rollout_server/http/prompt_fields.h"
#include "rollout_server/http/request_fields.h"
#include "rollout_server/service/services.h"

namespace tandem::rollout {

// `name`: by which callers know the model.
ModelFacts FactsOf(const ServiceParts& parts, const std::string& name, const std::string& root);

// Thread-safe. Errors of all methods: INVALID_ARGUMENT names the field (ParamOf), what was expected
// and what came; NOT_FOUND for another model.
class RequestReader {
 public:
  // `tokenizer` must outlive this.
  RequestReader(const Tokenizer* tokenizer, ModelFacts facts)
      : facts_(std::move(facts)), prompts_(tokenizer, facts_.context_tokens) {}

  // The job, what it shows, and the caller's request_id are set in the context that is returned.
  absl::StatusOr<AnswerContext> ReadCompletions(const std::string& body) const;  // OpenAI's
  absl::StatusOr<AnswerContext> ReadChat(const std::string& body) const;         // OpenAI's
  // prime-rl's: as ReadChat, but the prompt is the ids of `tokens`, so that earlier turns are not
  // tokenised again; the messages are not rendered.
  absl::StatusOr<AnswerContext> ReadChatOfIds(const std::string& body) const;
  absl::StatusOr<AnswerContext> ReadGenerate(const std::string& body) const;  // vLLM's, of ids

  const ModelFacts& facts() const { return facts_; }
  const PromptReader& prompts() const { return prompts_; }

 private:
  absl::StatusOr<AnswerContext> ReadChatBody(const std::string& body, bool with_ids) const;
  // The prompt as ids. Checks all fields that were read before.
  absl::StatusOr<std::vector<int32_t>> ReadIds(JsonFields& fields, const std::string& name) const;

  const ModelFacts facts_;
  const PromptReader prompts_;
};

}  // namespace tandem::rollout
