// The trainer's loop where rewards come from a service: groups are collected while others are
// judged, and a service that is slow or fails ends nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/json_service.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/trainer_fixture.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using ::tandem::testing::IsOk;
using ::tandem::testing::JsonService;
using ::testing::Contains;

// 1 for completions "0", 0 for others, as number_answer has it for the fixture's prompts.
JsonService::Reply OneForZero(const JsonService::Request& request) {
  const json asked = json::parse(request.body);
  json rewards = json::array();
  for (const json& input : asked["inputs"]) rewards.push_back(input["completion"] == "0" ? 1 : 0);
  return {.body = json::object({{"rewards", rewards}}).dump()};
}

class TrainerRewardsTest : public TrainerTest {
 protected:
  void UseService(const JsonService& service) {
    options_.reward.weights = {{"http", 1}};
    options_.reward.http.client.url = service.url();
    options_.reward.http.service.retry_initial_seconds = 0;
    options_.reward.cache.entries = 0;
  }
};

TEST_F(TrainerRewardsTest, GroupsAreCollectedWhileOthersAreJudged) {
  std::latch all_of_the_step(
      4);  // two groups of two: passed only where all are asked about at once
  JsonService service([&](const JsonService::Request& request) {
    all_of_the_step.arrive_and_wait();
    return OneForZero(request);
  });
  UseService(service);
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{0, 1}}));
  const json line = Lines("metrics.jsonl").back();
  EXPECT_EQ(line["reward/mean"], 0.5);
  EXPECT_EQ(line["reward/failed_share"], 0);
  EXPECT_EQ(line["reward/cache_hits"], 0);
  EXPECT_GT(line["reward/latency_p50"], 0);
  EXPECT_FALSE(line.contains("reward/judge_calls"));
}

TEST_F(TrainerRewardsTest, TrainsTheSameGroupsInTheSameOrderAsWithBuiltInRewards) {
  JsonService service(OneForZero);
  UseService(service);
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(Lines("metrics.jsonl")[2]["reward/part/http"], 0.5);
}

TEST_F(TrainerRewardsTest, ARunOfBuiltInRewardsHasNoNumbersOfExternalOnes) {
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  for (const char* const key : {"reward/failed_share", "reward/cache_hits", "reward/latency_p50"}) {
    EXPECT_FALSE(Lines("metrics.jsonl")[0].contains(key)) << key;
  }
}

TEST_F(TrainerRewardsTest, AStopDoesNotWaitForAServiceThatDoesNotAnswer) {
  std::latch release(1);
  JsonService service([&](const JsonService::Request& request) {
    stop_.Request();
    release.wait();
    return OneForZero(request);
  });
  UseService(service);
  EXPECT_THAT(Run(), IsOk());
  EXPECT_EQ(Events().back(), "run_stopped");
  EXPECT_TRUE(trained_.empty());
  release.count_down();
}

TEST_F(TrainerRewardsTest, ACompletionWhoseRewardFailsIsMaskedAndCountedAndNeverZero) {
  JsonService service([](const JsonService::Request& request) {
    const json asked = json::parse(request.body);
    json rewards = json::array();
    for (const json& input : asked["inputs"]) {
      if (input["completion"] == "0")
        rewards.push_back(0.75);
      else
        rewards.push_back({{"error", "no idea"}});
    }
    return JsonService::Reply{.body = json::object({{"rewards", rewards}}).dump()};
  });
  UseService(service);
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  const json line = Lines("metrics.jsonl")[0];
  EXPECT_EQ(line["reward/mean"], 0.75);
  EXPECT_EQ(line["reward/failed_share"], 0.5);
  EXPECT_EQ(line["drops/completion_reward_failed"], 2);
}

TEST_F(TrainerRewardsTest, AnEvaluationIsRewardedByTheSameService) {
  std::latch all_prompts(3);
  std::atomic<int> calls = 0;
  JsonService service([&](const JsonService::Request& request) {
    if (++calls <= 3) all_prompts.arrive_and_wait();  // the first evaluation: one completion each
    return OneForZero(request);
  });
  UseService(service);
  options_.steps = 1;
  options_.data.eval = options_.data.train;
  ASSERT_THAT(Run(), IsOk());
  const json line = Lines("metrics.jsonl")[0];
  EXPECT_EQ(line["eval/greedy"], 1);
  EXPECT_EQ(line["eval/num_prompts"], 3);
}

TEST_F(TrainerRewardsTest, AServiceThatIsGoneIsAnEventOfTheRun) {
  {
    JsonService service(OneForZero);
    UseService(service);
  }
  options_.reward.http.service.breaker_failures = 1;
  options_.max_skipped_steps = 0;
  EXPECT_FALSE(Run().ok()) << "a step without any reward makes no weights";
  EXPECT_THAT(Events(), Contains("reward_breaker_opened"));
  EXPECT_EQ(Lines("events.jsonl")[0]["kind"], "run_started");
}

}  // namespace
}  // namespace tandem::trainer
