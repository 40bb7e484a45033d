#include "trainer/rewards/judge/judge_text.h"

#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/trainer/rewards/held_completions.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kInvalidArgument;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

TEST(FillRubric, FillsPlacesOnceAndLeavesOtherBraces) {
  const auto questions = QuestionsAbout({"see {answer}", "other"});
  EXPECT_EQ(FillRubric("{prompt}|{completion}|{answer}|{\"score\": 1}|{x}", questions[0]),
            "What?|see {answer}|42|{\"score\": 1}|{x}")
      << "what a completion says is no place of the rubric";
}

TEST(FillRubric, ShowsTheQuestionsCompletionAsAAndTheOtherAsB) {
  RewardQuestion question = QuestionsAbout({"first", "second"})[1];
  question.other = 0;
  EXPECT_EQ(FillRubric("A: {completion_a} B: {completion_b}", question), "A: second B: first");
}

TEST(JudgeRequestJson, IsARequestOfChatCompletions) {
  JudgeOptions options;
  options.model = "judge-1";
  options.temperature = 0.5;
  options.max_tokens = 64;
  EXPECT_EQ(JudgeRequestJson(options, "say \"hi\""),
            R"({"model":"judge-1","messages":[{"role":"user","content":"say \"hi\""}],)"
            R"("temperature":0.5,"max_tokens":64})");
}

TEST(ParseJudgeReply, TakesWhatFollowsTheThoughtsAndTheUsage) {
  const auto reply = ParseJudgeReply(
      R"({"choices":[{"message":{"content":"<think>maybe 3</think>\n8"},"finish_reason":"stop"}],)"
      R"("usage":{"total_tokens":17}})");
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply->text, "\n8");
  EXPECT_EQ(reply->tokens, 17);
  EXPECT_FALSE(reply->is_cut);
}

TEST(ParseJudgeReply, KnowsACutReplyAndOneWithoutUsage) {
  const auto reply =
      ParseJudgeReply(R"({"choices":[{"message":{"content":"I"},"finish_reason":"length"}]})");
  ASSERT_THAT(reply, IsOk());
  EXPECT_TRUE(reply->is_cut);
  EXPECT_EQ(reply->tokens, -1);
}

TEST(ParseJudgeReply, RefusesWhatIsNoReply) {
  for (const char* const body :
       {"", "hello", "{}", R"({"choices":[]})", R"({"choices":[{"message":{"content":null}}]})",
        R"({"choices":[7]})", R"({"choices":[{"message":7}]})", "[[[[[[[["}) {
    EXPECT_THAT(ParseJudgeReply(body), FailsWith(kInvalidArgument, "the endpoint wrote")) << body;
  }
}

struct ScoreCase {
  std::string name, reply;
  double want;
};
class ScoreTable : public ::testing::TestWithParam<ScoreCase> {};
TEST_P(ScoreTable, IsReadAndScaled) {
  const auto score = ParseScore(GetParam().reply, {});
  ASSERT_THAT(score, IsOk());
  EXPECT_DOUBLE_EQ(*score, GetParam().want);
}
INSTANTIATE_TEST_SUITE_P(
    Table, ScoreTable,
    ::testing::Values(
        ScoreCase{"Alone", "7", 0.7},
        ScoreCase{"LastOfSeveral", "3 points for style. Total: 8", 0.8},
        ScoreCase{"OutOf", "I give it 8/10.", 0.8}, ScoreCase{"OutOfInWords", "9 out of 10", 0.9},
        ScoreCase{"Decimals", "score 6.5", 0.65},
        ScoreCase{"Json", "{\"score\": 4, \"of\": 10}", 0.4},
        ScoreCase{"JsonAmongProse", "So 9? No: ```{\"why\": \"{3}\", \"score\": 2}``` ok 5", 0.2},
        ScoreCase{"JsonWithAnObjectInside", "{\"score\": 8, \"parts\": {\"x\": 1}}", 0.8},
        ScoreCase{"TheLastJsonCounts", "{\"score\": 1} {\"score\": 3}", 0.3}),
    [](const auto& info) { return info.param.name; });

TEST(ParseScore, TakesTheFirstGroupOfTheLastMatchAndScalesToTheRange) {
  JudgeOptions options;
  options.score_pattern = R"(Rating: (-?\d+))";
  options.score_min = -2;
  options.score_max = 2;
  EXPECT_DOUBLE_EQ(*ParseScore("Rating: 2 ... Rating: -1. 100 %", options), 0.25);
  EXPECT_THAT(ParseScore("2", options), FailsWith(kInvalidArgument, "no score in the reply"));
}

TEST(ParseScore, RefusesWhatHasNoScoreOrOneOutsideOfTheRange) {
  EXPECT_THAT(ParseScore("very good", {}), FailsWith(kInvalidArgument, "ends 'very good'"));
  EXPECT_THAT(ParseScore("", {}), FailsWith(kInvalidArgument, "no score"));
  EXPECT_THAT(ParseScore("11", {}), FailsWith(kInvalidArgument, "score 11 is outside of 0 to 10"));
  EXPECT_THAT(ParseScore("{\"score\": \"high\"}", {}), FailsWith(kInvalidArgument, "no score"));
}

TEST(ParseVerdict, ReadsMarksJsonAndALetterAlone) {
  EXPECT_DOUBLE_EQ(*ParseVerdict("B is fine, but [[A]]", {}), 1);
  EXPECT_DOUBLE_EQ(*ParseVerdict("[[A]] at first; finally [[B]].", {}), 0);
  EXPECT_DOUBLE_EQ(*ParseVerdict("[[C]]", {}), 0.5);
  EXPECT_DOUBLE_EQ(*ParseVerdict("[[ tie ]]", {}), 0.5);
  EXPECT_DOUBLE_EQ(*ParseVerdict("{\"why\": \"A is long\", \"winner\": \"B\"}", {}), 0);
  EXPECT_DOUBLE_EQ(*ParseVerdict(" a\n", {}), 1);
  EXPECT_THAT(ParseVerdict("A good answer is B", {}), FailsWith(kInvalidArgument, "no verdict"));
  JudgeOptions options;
  options.score_pattern = "winner is (\\w+)";
  EXPECT_DOUBLE_EQ(*ParseVerdict("the winner is A", options), 1);
  EXPECT_THAT(ParseVerdict("the winner is me", options), FailsWith(kInvalidArgument, "no verdict"));
}

}  // namespace
}  // namespace tandem::trainer
