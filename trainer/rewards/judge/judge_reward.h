// JudgeReward: asks a language model for the score of one completion, or which of two is better,
// through an endpoint with the API of OpenAI's chat completions (vLLM, SGLang, llama.cpp, hosted
// ones). Used by external_parts.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "trainer/rewards/answer_cache.h"
#include "trainer/rewards/external/http_client.h"
#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external/reward_tally.h"
#include "trainer/rewards/judge/judge_options.h"

namespace tandem::trainer {

// What a judge may cost in a run, and what it has cost. Thread-safe. The bound on tokens is known
// only when replies are there, so those under way may go over it.
class JudgeBudget {
 public:
  // Goes on from what `cache` knows under `name`, and keeps it there. Pointers must outlive it;
  // `cache` may be null.
  JudgeBudget(const JudgeBudgetOptions& options, AnswerCache* cache, std::string name,
              RewardTally* tally);

  // Takes one call.
  //   RESOURCE_EXHAUSTED  the budget is used up; the first time, an event says so
  absl::Status TakeCall() ABSL_LOCKS_EXCLUDED(mu_);
  void AddTokens(int64_t tokens) ABSL_LOCKS_EXCLUDED(mu_);

  Spending spent() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Remember(const Spending& more);

  const JudgeBudgetOptions options_;
  AnswerCache* const cache_;
  const std::string name_;
  RewardTally* const tally_;
  Mutex mu_;
  Spending spent_ ABSL_GUARDED_BY(mu_);
  bool said_so_ ABSL_GUARDED_BY(mu_) = false;
};

// What the workers of a judge share; all outlive them.
struct JudgeParts {
  const JudgeOptions& options;
  const std::string& rubric;
  ServiceCaller* caller = nullptr;
  JudgeBudget* budget = nullptr;
  RewardTally* tally = nullptr;
};

// Use from one thread, which blocks SIGPIPE.
class JudgeReward : public Asker {
 public:
  JudgeReward(const JudgeParts& parts, EndSign* end);

  // The score in [0, 1] of each question, or of a comparison the verdict. A reply that cannot be
  // parsed is asked for once more.
  //   RESOURCE_EXHAUSTED  the budget is used up
  //   INVALID_ARGUMENT    two replies that cannot be parsed
  //   errors of ServiceCaller::Call and HttpClient::Post
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override;

 private:
  RewardAnswer AskOnce(const RewardQuestion& question);

  const JudgeParts parts_;
  const ServiceCaller::Pause pause_;
  HttpClient client_;
};

}  // namespace tandem::trainer
