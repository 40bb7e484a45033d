// The component `judge` against an endpoint on the loopback.
#include "trainer/rewards/judge/judge_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"
#include "tests/support/json_service.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/rewards/held_completions.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kInvalidArgument;
using nlohmann::json;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::JsonService;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Replies to the rubric that it is shown, each of 10 tokens.
class JudgeTest : public ::testing::Test {
 protected:
  using Reply = std::function<std::string(const std::string& rubric)>;

  void Start(Reply reply, const std::string& rubric = "Rate: {completion}") {
    service_ = std::make_unique<JsonService>([reply](const JsonService::Request& request) {
      const json asked = json::parse(request.body);
      const std::string text = reply(asked["messages"][0]["content"]);
      const json answer = {
          {"choices", json::array({{{"message", {{"role", "assistant"}, {"content", text}}},
                                    {"finish_reason", "stop"}}})},
          {"usage", {{"total_tokens", 10}}}};
      return JsonService::Reply{.body = answer.dump()};
    });
    EXPECT_THAT(WriteFileAtomically(directory_ / "rubric.txt", rubric), IsOk());
    options_.weights = {{"judge", 1}};
    options_.judge.client.url = service_->url() + "/v1";
    options_.judge.model = "m";
    options_.judge.rubric_file = directory_ / "rubric.txt";
    options_.judge.service.retry_initial_seconds = 0;
    rewards_ = *RewardFunction::Create(options_);
  }

  std::vector<Reward> Score(const std::vector<std::string>& texts) {
    return rewards_->Score(HeldCompletions(texts)->inputs());
  }

  TempDir directory_;
  RewardOptions options_;
  std::unique_ptr<JsonService> service_;
  std::unique_ptr<RewardFunction> rewards_;
};

TEST_F(JudgeTest, ScoresEachCompletionByTheRubric) {
  Start([](const std::string& rubric) { return rubric == "Rate: good" ? "9/10" : "2"; });
  const auto scored = Score({"good", "bad"});
  EXPECT_DOUBLE_EQ(scored[0].value, 0.9) << scored[0].mask_reason;
  EXPECT_DOUBLE_EQ(scored[1].value, 0.2);
  EXPECT_EQ(service_->requests()[0].path, "/v1/chat/completions");
  const RewardNumbers numbers = rewards_->tally()->TakeNumbers();
  EXPECT_EQ(numbers.judge_calls, 2);
  EXPECT_EQ(numbers.judge_tokens, 20);
}

TEST_F(JudgeTest, AReplyWithoutAScoreIsAskedForOnceMoreAndThenMasked) {
  std::atomic<int> calls = 0;
  Start([&](const std::string&) { return ++calls == 1 ? "I cannot say" : "5"; });
  EXPECT_DOUBLE_EQ(Score({"a"})[0].value, 0.5);
  Start([&](const std::string&) { return "no idea"; });
  const Reward reward = Score({"a"})[0];
  EXPECT_THAT(reward.mask_reason,
              HasSubstr("reward_failed: judge: no score in the reply that ends 'no idea'"));
  EXPECT_FALSE(reward.correct);
  EXPECT_THAT(service_->requests(), SizeIs(2));
}

TEST_F(JudgeTest, TheMeanOfSeveralRepliesCountsWhereTheyAreAskedFor) {
  options_.judge.samples = 3;
  std::atomic<int> calls = 0;
  Start([&](const std::string&) { return std::to_string(3 * ++calls); });
  EXPECT_DOUBLE_EQ(Score({"a"})[0].value, 0.6);
  EXPECT_EQ(calls, 3);
}

TEST_F(JudgeTest, ComparesInBothOrdersAndCountsAPreferenceForAPosition) {
  options_.judge.mode = JudgeMode::kPairwise;
  // It prefers "best", and else what it sees first.
  Start(
      [](const std::string& rubric) {
        return rubric.find("B=best") != std::string::npos ? "[[B]]" : "[[A]]";
      },
      "A={completion_a};B={completion_b}");
  const auto scored = Score({"x", "best", "y"});
  EXPECT_DOUBLE_EQ(scored[0].value, 0.25) << scored[0].mask_reason;
  EXPECT_DOUBLE_EQ(scored[1].value, 1);
  EXPECT_DOUBLE_EQ(scored[2].value, 0.25);
  EXPECT_THAT(service_->requests(), SizeIs(6));
  const RewardNumbers numbers = rewards_->tally()->TakeNumbers();
  EXPECT_EQ(numbers.pairs, 3);
  EXPECT_EQ(numbers.pair_disagreements, 1);
}

TEST_F(JudgeTest, ABudgetOfCallsEndsInFailuresAndOneEvent) {
  options_.judge.budget.max_calls = 2;
  options_.judge.service.workers = 1;
  Start([](const std::string&) { return "5"; });
  const auto scored = Score({"a", "b", "c", "d"});
  EXPECT_DOUBLE_EQ(scored[1].value, 0.5);
  EXPECT_THAT(scored[2].mask_reason,
              HasSubstr("reward_failed: judge: the budget of the judge is used up: 2 calls of "
                        "reward.judge.budget.max_calls 2"));
  EXPECT_THAT(service_->requests(), SizeIs(2));
  const auto events = rewards_->tally()->TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, "reward_budget_spent");
}

TEST_F(JudgeTest, ABudgetOfTokensCountsWhatTheEndpointSays) {
  options_.judge.budget.max_tokens = 20;
  options_.judge.service.workers = 1;
  Start([](const std::string&) { return "5"; });
  const auto scored = Score({"a", "b", "c"});
  EXPECT_THAT(scored[1].mask_reason, IsEmpty());
  EXPECT_THAT(scored[2].mask_reason, HasSubstr("20 tokens of reward.judge.budget.max_tokens 20"));
}

TEST_F(JudgeTest, ARunThatIsResumedGoesOnWithItsBudgetAndItsAnswers) {
  options_.judge.budget.max_calls = 2;
  options_.cache.file = directory_ / "answers.sqlite";
  Start([](const std::string&) { return "5"; });
  ASSERT_THAT(rewards_->Open("run-1"), IsOk());
  EXPECT_DOUBLE_EQ(Score({"a"})[0].value, 0.5);
  rewards_ = *RewardFunction::Create(options_);
  ASSERT_THAT(rewards_->Open("run-1"), IsOk());
  EXPECT_DOUBLE_EQ(Score({"a"})[0].value, 0.5);
  EXPECT_THAT(service_->requests(), SizeIs(1)) << "not paid for twice";
  EXPECT_DOUBLE_EQ(Score({"b"})[0].value, 0.5);
  EXPECT_THAT(Score({"c"})[0].mask_reason, HasSubstr("budget")) << "one call was before";
  rewards_ = *RewardFunction::Create(options_);
  ASSERT_THAT(rewards_->Open("run-2"), IsOk());
  EXPECT_DOUBLE_EQ(Score({"c"})[0].value, 0.5) << "another run has its own";
}

TEST_F(JudgeTest, AnotherRubricIsAnotherQuestion) {
  options_.cache.file = directory_ / "answers.sqlite";
  Start([](const std::string&) { return "5"; });
  Score({"a"});
  Start([](const std::string&) { return "6"; }, "Be strict: {completion}");
  EXPECT_DOUBLE_EQ(Score({"a"})[0].value, 0.6);
}

TEST_F(JudgeTest, RefusesWhatCannotWork) {
  Start([](const std::string&) { return "5"; });
  const auto create = [this](auto change) {
    RewardOptions options = options_;
    change(options.judge);
    return RewardFunction::Create(options).status();
  };
  EXPECT_THAT(create([](JudgeOptions& o) { o.model = ""; }),
              FailsWith(kInvalidArgument, "reward.judge.model is empty"));
  const absl::Status missing = create([](JudgeOptions& o) { o.rubric_file = "/nowhere"; });
  EXPECT_THAT(missing, FailsWith(kInvalidArgument, "reward.judge.rubric_file: "));
  EXPECT_EQ(ExitCodeOf(missing), ExitCode::kBadModelOrData);
  EXPECT_THAT(create([](JudgeOptions& o) { o.mode = JudgeMode::kPairwise; }),
              FailsWith(kInvalidArgument, "has no {completion_a}"));
  EXPECT_THAT(create([](JudgeOptions& o) { o.score_pattern = "("; }),
              FailsWith(kInvalidArgument, "reward.judge.score_pattern: missing )"));
  EXPECT_THAT(create([](JudgeOptions& o) { o.score_pattern = "\\d+"; }),
              FailsWith(kInvalidArgument, "score_pattern has no group"));
  EXPECT_THAT(create([](JudgeOptions& o) { o.score_max = 0; }),
              FailsWith(kInvalidArgument, "score_min must be below"));
  EXPECT_THAT(create([](JudgeOptions& o) { o.client.url = ""; }),
              FailsWith(kInvalidArgument, "reward.judge.url is ''"));
}

}  // namespace
}  // namespace tandem::trainer
