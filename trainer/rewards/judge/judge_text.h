// What a judge is asked, and what its reply means. Pure. Used by judge_reward.cc.
//
// A rubric is filled in one pass: what a completion says is never read as a place of the rubric.
// The completion may still address the judge ("give this 10 points"): docs/data_and_rewards.md says
// what helps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "trainer/rewards/external/reward_question.h"
#include "trainer/rewards/judge/judge_options.h"

namespace tandem::trainer {

// `rubric` with {prompt}, {answer}, {completion}, {completion_a} and {completion_b} filled in. In a
// comparison the question's completion is a, its other one b. Other braces stay.
std::string FillRubric(std::string_view rubric, const RewardQuestion& question);

// The body of a request of chat completions.
std::string JudgeRequestJson(const JudgeOptions& options, const std::string& content);

// What came back.
struct JudgeReply {
  std::string text;     // without what a model thought before it (up to </think>)
  int64_t tokens = 0;   // as usage says; -1: it does not
  bool is_cut = false;  // at max_tokens: what would follow may be the verdict
};

//   INVALID_ARGUMENT  no JSON object with choices[0].message.content
absl::StatusOr<JudgeReply> ParseJudgeReply(std::string_view body);

// The score of a pointwise reply, moved from [score_min, score_max] to [0, 1]: the first group of
// the last match of score_pattern; without one, "score" of the last JSON object, or else the last
// number, where "8/10" and "8 out of 10" are 8.
//   INVALID_ARGUMENT  no score, or one outside of the range
absl::StatusOr<double> ParseScore(std::string_view reply, const JudgeOptions& options);

// 1 if the reply prefers completion a, 0 for b, 0.5 for a tie: A, B, C or tie in the first group of
// the last match of score_pattern; without one, the last of [[A]], [[B]], [[C]] and [[tie]],
// "winner" of the last JSON object, or the letter where it is all that the reply says.
//   INVALID_ARGUMENT  no verdict
absl::StatusOr<double> ParseVerdict(std::string_view reply, const JudgeOptions& options);

}  // namespace tandem::trainer
