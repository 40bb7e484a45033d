// The fields that requests of all text protocols have in common, under OpenAI's and vLLM's names:
// how completions are drawn, and what is returned of them. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rollout_server/completions/completion_job.h"
#include "rollout_server/http/json_fields.h"

namespace tandem::rollout {

// What the requests are checked against.
struct ModelFacts {
  std::string name;  // by which callers know the model
  std::string root;  // its directory or name on the Hub, as the server was started with
  std::vector<std::string> adapters;
  int64_t vocab_size = 0;
  int64_t context_tokens = 0;
  int64_t kv_capacity_tokens = 0;
  int64_t max_completions = 0;  // of one prompt
};

// What an answer shows.
struct AnswerRules {
  bool stream = false;
  bool include_usage = false;     // in a stream: at its end
  bool continuous_usage = false;  // and with each piece
  bool echo = false;              // the prompt before each completion
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool raw_logprobs = false;  // of the untouched logits, in place of the behaviour log-probs
  bool prompt_logprobs = false;
  bool token_ids = false;
  bool tokens_as_ids = false;  // "token_id:17" in place of the token's text
  bool skip_special_tokens = true;
  bool include_stop = false;
  bool tool_calls = false;  // are read out of the text
};

inline constexpr int64_t kMostTokens = 1 << 24;

// Reads `model` into job->adapter. Any text for the model of a server without a name; null or
// missing is the served model.
//   NOT_FOUND  a model that is neither this server's nor one of its adapters
absl::Status ReadModel(JsonFields& fields, const ModelFacts& facts, CompletionJob* job);

// Reads n, seed, temperature, top_p, top_k, min_p, min_tokens, stop, stop_token_ids, ignore_eos,
// priority, cache_salt and request_id, and what the text is to hold. Refuses what this server does
// not do (penalties, bias, beams, grammars) unless it has a value that changes nothing.
void ReadSampling(JsonFields& fields, const ModelFacts& facts, CompletionJob* job,
                  AnswerRules* rules);

// Reads stream and stream_options, and ignores what only names or measures a request.
void ReadDelivery(JsonFields& fields, AnswerRules* rules);

// The most tokens of a completion where none are asked for: what the context and the KV cache leave.
int32_t RoomFor(const ModelFacts& facts, int64_t prompt_tokens, int64_t num_completions);

// Would the longest completion of each prompt fit into the context?
absl::Status CheckContext(const ModelFacts& facts, const CompletionJob& job);

}  // namespace tandem::rollout
