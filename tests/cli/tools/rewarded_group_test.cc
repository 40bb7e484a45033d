#include "cli/tools/rewarded_group.h"

#include <gtest/gtest.h>

#include <vector>

#include "cli/tools/reward_flags.h"
#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::FailsWith;
using Indices = std::vector<size_t>;

// Reward 0.2 is that of a number among others, 1 of the right answer; the last was cut.
const std::vector<RewardedText> kGroup = {
    {.text = "41", .reward = 0.2},
    {.text = "42", .reward = 1, .correct = true},
    {.text = "no", .reward = 0},
    {.text = "42", .reward = 1, .correct = true},
    {.text = "it is 42", .reward = 1, .correct = true},
    {.text = "", .reward = 2, .correct = true, .usable = false}};

TEST(RewardedGroupTest, ChoosesTheBestTheCorrectOrThePair) {
  EXPECT_EQ(Choose(kGroup, KeptCompletions::kBest), Indices({1}));
  EXPECT_EQ(Choose(kGroup, KeptCompletions::kCorrect), Indices({1, 4}));  // each text once
  EXPECT_EQ(Choose(kGroup, KeptCompletions::kPairs), Indices({1, 2}));
}

TEST(RewardedGroupTest, AGroupThatTellsNothingGivesNoPair) {
  const std::vector<RewardedText> equal = {{.text = "a", .reward = 1}, {.text = "b", .reward = 1}};
  EXPECT_EQ(Choose(equal, KeptCompletions::kPairs), Indices());
  EXPECT_EQ(Choose(equal, KeptCompletions::kCorrect), Indices());
  const std::vector<RewardedText> cut = {{.text = "a", .usable = false}};
  EXPECT_EQ(Choose(cut, KeptCompletions::kBest), Indices());
  EXPECT_EQ(Choose({}, KeptCompletions::kPairs), Indices());
}

TEST(RewardedGroupTest, RowsHaveThePromptOfTheirSource) {
  const Indices one = {1}, pair = {1, 2};
  const auto parser = [](const std::string& suffix) {
    return *trainer::RowParser::Create({.suffix = suffix});
  };
  EXPECT_EQ(
      *RowOf(parser(" Think."), R"({"question": "6 * 7?", "answer": "so #### 42"})", kGroup, one),
      "{\"prompt\":\"6 * 7? Think.\",\"answer\":\"42\",\"reward\":1.0}\n");
  EXPECT_EQ(*RowOf(parser(""), R"({"prompt": "6 * 7?", "answer": "42"})", kGroup, pair),
            "{\"prompt\":\"6 * 7?\",\"chosen\":\"42\",\"rejected\":\"no\",\"score_chosen\":1.0,"
            "\"score_rejected\":0.0}\n");
  EXPECT_EQ(
      *RowOf(parser(""),
             R"({"messages": [{"role": "user", "content": "6 * 7?"}], "answer": "42",
                       "tools": [{"name": "f"}]})",
             kGroup, one),
      "{\"messages\":[{\"role\":\"user\",\"content\":\"6 * 7?\"}],\"tools\":[{\"name\":\"f\"}],"
      "\"answer\":\"42\",\"reward\":1.0}\n");
  EXPECT_THAT(RowOf(parser(""), "{}", kGroup, one),
              FailsWith(absl::StatusCode::kInvalidArgument, "prompt"));
}

TEST(RewardedGroupTest, WeightsOfRewardsAreWords) {
  trainer::RewardOptions options;
  ASSERT_TRUE(ApplyRewardFlags({"format=0.5", "number_answer"}, options).ok());
  ASSERT_EQ(options.weights.size(), 2u);
  EXPECT_EQ(options.weights[0].second, 0.5);
  EXPECT_EQ(options.weights[1].second, 1);
  EXPECT_THAT(ApplyRewardFlags({"format=x"}, options),
              FailsWith(absl::StatusCode::kInvalidArgument, "want NAME=WEIGHT"));
}

}  // namespace
}  // namespace tandem::cli
