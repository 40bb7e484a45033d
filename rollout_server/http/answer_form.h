// AnswerForm: the JSON in which the answer to a job is given: that of OpenAI's completions, of its
// chat completions, or of vLLM's token-in token-out endpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/completions/choice_text.h"
#include "rollout_server/completions/completion_job.h"
#include "rollout_server/completions/completion_run.h"
#include "rollout_server/http/json_fields.h"
#include "rollout_server/http/request_fields.h"
#include "rollout_server/http/tool_calls.h"

namespace tandem::rollout {

// What an answer is made from, beside its completions.
struct AnswerContext {
  std::string id, model;
  std::string fingerprint;  // of the server and its weights
  int64_t created = 0;      // seconds since 1970
  CompletionJob job;
  AnswerRules rules;
  TextRules text;
  std::vector<int32_t> eos_token_ids;
  std::vector<SequenceScore> prompt_scores;  // of each prompt, where they are asked for
};

struct ShownToken {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TopLogprob> top;
};

// A completion, or a piece of one.
struct ShownChoice {
  size_t choice = 0;
  bool is_first = true;  // piece
  std::string text;
  std::vector<ToolCall> calls;  // of a chat that offers tools
  std::vector<ShownToken> tokens;
  int64_t num_characters_before = 0;             // of this completion
  const FinishedCompletion* finished = nullptr;  // null: more pieces come
};

class AnswerForm {
 public:
  virtual ~AnswerForm() = default;
  virtual Json Choice(const AnswerContext& context, const ShownChoice& choice) const = 0;
  virtual Json Delta(const AnswerContext& context, const ShownChoice& choice) const = 0;
  // `usage` may be null.
  virtual Json Whole(const AnswerContext& context, Json choices, Json usage) const = 0;
  virtual Json Piece(const AnswerContext& context, Json choices, Json usage,
                     bool is_first) const = 0;
};

const AnswerForm& CompletionsForm();
const AnswerForm& ChatForm();
const AnswerForm& GenerateForm();

Json UsageJson(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens);

// The tokens of a whole completion.
std::vector<ShownToken> TokensOf(const AnswerRules& rules, const FinishedCompletion& completion);

}  // namespace tandem::rollout
