// JudgeOptions: section `reward.judge`: a language model that judges completions by a rubric,
// through any endpoint with the API of OpenAI's chat completions. Used by reward_options.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "trainer/rewards/external/http_client.h"
#include "trainer/rewards/external/service_call.h"

namespace tandem::trainer {

enum class JudgeMode {
  kPointwise,  // each completion alone gets a score
  kPairwise,   // completions of a group are compared two by two, in both orders
};

// Bounds of a whole run; 0: none.
struct JudgeBudgetOptions {
  int64_t max_calls = 0;
  int64_t max_tokens = 0;
};
void BindOptions(OptionBinder& binder, JudgeBudgetOptions& options);

struct JudgeOptions {
  HttpClientOptions client;  // url: up to and with /v1
  ServiceOptions service = {.workers = 64};
  std::string model;
  std::string rubric_file;
  JudgeMode mode = JudgeMode::kPointwise;
  double temperature = 0;
  int64_t max_tokens = 512;   // of a reply
  std::string score_pattern;  // RE2; empty: judge_text.h
  double score_min = 0, score_max = 10;
  int64_t samples = 1;    // pointwise: replies to one completion, whose mean counts
  int64_t opponents = 0;  // pairwise: of each completion; 0: all others
  JudgeBudgetOptions budget;
};
void BindOptions(OptionBinder& binder, JudgeOptions& options);

// Reads the rubric, and checks what can be known without a call.
//   INVALID_ARGUMENT  errors of CheckHttpClientOptions; no model or rubric, or with exit code 3 one
//                     that cannot be read; a rubric without {completion}, or {completion_a} and {completion_b} (pairwise); a pattern that
//                     does not compile or has no group; score_min not below score_max
absl::StatusOr<std::string> ReadRubric(const JudgeOptions& options);

}  // namespace tandem::trainer
