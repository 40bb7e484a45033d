#include "trainer/rewards/external/reward_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kAborted;
using absl::StatusCode::kInvalidArgument;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr char kText[] = "ab\u00e9d";  // five bytes: the third character has two

RewardAnswer Parse(const std::string& json) { return ParseAnswer(json, "it", kText); }

TEST(ParseAnswer, TakesANumberAnObjectAndSteps) {
  EXPECT_DOUBLE_EQ(Parse("0.25")->value, 0.25);
  EXPECT_DOUBLE_EQ(Parse(R"({"id":7,"reward":-1})")->value, -1);
  EXPECT_TRUE(Parse(R"({"reward":1,"steps":[]})")->steps.empty());
  const RewardAnswer answer =
      Parse(R"({"reward":0.5,"steps":[{"end":2,"reward":1},{"end":5,"reward":-0.5}]})");
  ASSERT_THAT(answer, IsOk());
  ASSERT_EQ(answer->steps.size(), 2u);
  EXPECT_EQ(answer->steps[0].end_byte, 2);
  EXPECT_DOUBLE_EQ(answer->steps[0].value, 1);
  EXPECT_EQ(answer->steps[1].end_byte, 5);
  EXPECT_DOUBLE_EQ(answer->steps[1].value, -0.5);
}

TEST(ParseAnswer, RefusesARewardThatIsNoFiniteNumber) {
  for (const char* const json : {"{}", R"({"reward":"1"})", R"({"reward":NaN})",
                                 R"({"reward":null})", R"({"reward":1e999})", "[1]", "", "null"}) {
    EXPECT_THAT(Parse(json), FailsWith(kInvalidArgument, "\"reward\" is not a finite number"))
        << json;
  }
}

TEST(ParseAnswer, AnErrorOfTheScorerIsItsAnswer) {
  EXPECT_THAT(Parse(R"({"reward":1,"error":"no idea"})"),
              FailsWith(kAborted, "it reports: \"no idea\""));
}

TEST(ParseAnswer, RefusesStepsThatDoNotFitTheText) {
  const auto steps = [](const std::string& list) {
    return Parse(R"({"reward":1,"steps":)" + list + "}");
  };
  EXPECT_THAT(steps(R"([{"end":6,"reward":1}])"),
              FailsWith(kInvalidArgument, "step 0 with \"end\" 6: want it after 0 and at most 5"));
  EXPECT_THAT(steps(R"([{"end":0,"reward":1}])"), FailsWith(kInvalidArgument, "want it after 0"));
  EXPECT_THAT(steps(R"([{"end":2,"reward":1},{"end":2,"reward":1}])"),
              FailsWith(kInvalidArgument, "step 1 with \"end\" 2: want it after 2"));
  EXPECT_THAT(steps(R"([{"end":3,"reward":1}])"),
              FailsWith(kInvalidArgument, "which is within a character"));
  EXPECT_THAT(steps(R"([{"end":2}])"), FailsWith(kInvalidArgument, "step 0: want {\"end\""));
  EXPECT_THAT(steps(R"([{"end":2.5,"reward":1}])"), FailsWith(kInvalidArgument, "want {\"end\""));
  EXPECT_THAT(steps("[3]"), FailsWith(kInvalidArgument, "want {\"end\""));
  EXPECT_THAT(steps("{}"), FailsWith(kInvalidArgument, "no list"));
}

TEST(ParseAnswer, ReadsBackWhatAnswerJsonWroteWithEveryBit) {
  const ExternalAnswer answer = {.value = 0.1 + 0.2, .steps = {{.end_byte = 2, .value = 1.0 / 3}}};
  const RewardAnswer read = Parse(AnswerJson(answer));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->value, 0.1 + 0.2);
  ASSERT_EQ(read->steps.size(), 1u);
  EXPECT_EQ(read->steps[0].value, 1.0 / 3);
}

TEST(QuestionJson, IsOneLineWithTheSourceAsItWas) {
  const RewardInput input = {.text = "a\nb",
                             .answer = "4",
                             .prompt = "p",
                             .source_json = R"({"z":1,"a":[2]})",
                             .truncated = true};
  EXPECT_EQ(QuestionJson(input, 7),
            R"({"id":7,"prompt":"p","completion":"a\nb","answer":"4","source":{"z":1,"a":[2]},)"
            R"("truncated":true})");
  EXPECT_THAT(QuestionJson({.text = "\xff", .source_json = "no json"}),
              ::testing::HasSubstr("\"source\":null"));
}

TEST(HeldGroup, KeepsTextsThatTheirOwnersHaveLost) {
  std::unique_ptr<HeldGroup> group;
  {
    const std::string prompt = "What is it?", first = "a short one", second(100, 'x');
    group = std::make_unique<HeldGroup>(std::vector<RewardInput>{
        {.text = first, .prompt = prompt, .num_tokens = 3}, {.text = second, .prompt = prompt}});
  }
  EXPECT_EQ(group->inputs()[0].text, "a short one");
  EXPECT_EQ(group->inputs()[0].num_tokens, 3);
  EXPECT_EQ(group->inputs()[1].text, std::string(100, 'x'));
  EXPECT_EQ(group->inputs()[1].prompt, "What is it?");
  EXPECT_EQ(group->inputs()[0].prompt.data(), group->inputs()[1].prompt.data()) << "one copy";
}

TEST(DigestOfParts, TellsListsApartWhoseBytesAreTheSame) {
  using Two = std::array<std::string_view, 2>;
  EXPECT_EQ(DigestOfParts(Two{"ab", "c"}), DigestOfParts(Two{"ab", "c"}));
  EXPECT_NE(DigestOfParts(Two{"ab", "c"}), DigestOfParts(Two{"a", "bc"}));
  EXPECT_NE(DigestOfParts(Two{"1:a", ""}), DigestOfParts(Two{"", "1:a"}));
}

}  // namespace
}  // namespace tandem::trainer
