#include "cli/bench/serve_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(Quantile, IsTheNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(Quantile(values, 0.5), 50);
  EXPECT_EQ(Quantile(values, 0.99), 99);
  EXPECT_EQ(Quantile(values, 1), 100);
  EXPECT_EQ(Quantile({7}, 0.5), 7);
  EXPECT_EQ(Quantile({7, 9}, 0.5), 7);
  EXPECT_EQ(Quantile({7, 9}, 0.51), 9);
  EXPECT_EQ(Quantile({}, 0.5), 0);
}

// Two groups answered and one refused, in 4 s.
ServeResult Result() {
  ServeResult result;
  result.groups.push_back({.total_ms = 900,
                           .late_ms = 1,
                           .queue_ms = 10,
                           .prefill_ms = 20,
                           .between_tokens_ms = {5, 7},
                           .longest_gap_ms = {6, 40},
                           .tokens = 100});
  result.groups.push_back({.total_ms = 700,
                           .queue_ms = 0,
                           .prefill_ms = 30,
                           .between_tokens_ms = {6},
                           .longest_gap_ms = {9},
                           .tokens = 60});
  result.groups.push_back(
      {.code = "RESOURCE_EXHAUSTED", .message = "256 groups wait", .total_ms = 1, .tokens = 50});
  result.seconds = 4;
  return result;
}

TEST(ServeTable, CountsWhatWasAnsweredAndLeavesRefusedGroupsOutOfTheTimes) {
  const nlohmann::json out = nlohmann::json::parse(ToJson({.groups = 3}, Result()));
  EXPECT_EQ(out["groups"]["OK"], 2);
  EXPECT_EQ(out["groups"]["RESOURCE_EXHAUSTED"], 1);
  EXPECT_EQ(out["tokens_per_second"], 40);
  EXPECT_EQ(out["first_token_ms"]["p50"], 30);
  EXPECT_EQ(out["first_token_ms"]["p99"], 31);
  EXPECT_EQ(out["between_tokens_ms"]["p50"], 6);
  EXPECT_EQ(out["longest_gap_ms"]["largest"], 40);
  EXPECT_EQ(out["group_ms"]["p50"], 700);
}

TEST(ServeTable, TheTextQuotesARefusal) {
  const std::string text = ToText({.address = "h:1", .groups = 3}, Result());
  EXPECT_THAT(text, HasSubstr("throughput 40.0 tok/s over 4.0 s"));
  EXPECT_THAT(text, HasSubstr("256 groups wait"));
  EXPECT_THAT(text, HasSubstr("closed loop"));
}

TEST(ServeLoadTest, EveryGroupIsAskedForOnceWithItsOwnPromptAndSeed) {
  testing::FakeRolloutServer server;
  int64_t last = 0;
  const auto result = RunServeLoad({.address = server.address(),
                                    .groups = 12,
                                    .group_size = 3,
                                    .prompt_tokens = 5,
                                    .new_tokens = 4,
                                    .concurrency = 4},
                                   [&](int64_t done) { EXPECT_EQ(done, ++last); });
  ASSERT_THAT(result, testing::IsOk());
  EXPECT_EQ(last, 12);
  std::set<int64_t> ids;
  std::set<std::string> prompts;
  std::set<uint64_t> seeds;
  for (const auto& request : server.requests()) {
    ids.insert(request.group_id());
    seeds.insert(request.sampling().seed());
    std::string prompt;
    for (const int32_t id : request.prompt_token_ids()) prompt += std::to_string(id) + " ";
    prompts.insert(prompt);
    EXPECT_EQ(request.num_completions(), 3);
  }
  EXPECT_EQ(ids.size(), 12u);
  EXPECT_EQ(prompts.size(), 12u);
  EXPECT_EQ(seeds.size(), 12u);
  for (const ServedGroup& group : result->groups) {
    EXPECT_EQ(group.code, "OK");
    EXPECT_EQ(group.longest_gap_ms.size(), 3u);
  }
}

TEST(ServeLoadTest, AnOpenLoopAsksWithoutWaitingForAnswers) {
  testing::FakeRolloutServer server;
  server.HoldGroups();
  // The held server answers only once all eight have been asked.
  std::thread release([&] {
    while (server.requests().size() < 8) std::this_thread::yield();
    server.ReleaseGroups();
  });
  const auto result = RunServeLoad({.address = server.address(),
                                    .groups = 8,
                                    .prompt_tokens = 2,
                                    .new_tokens = 2,
                                    .concurrency = 1,
                                    .groups_per_second = 1000},
                                   [](int64_t) {});
  release.join();
  ASSERT_THAT(result, testing::IsOk());
  EXPECT_EQ(result->groups.size(), 8u);
}

TEST(ServeLoadTest, RefusedGroupsAreCountedByCode) {
  testing::FakeRolloutServer server;
  server.FailNextGroups({absl::ResourceExhaustedError("full")});
  const auto result = RunServeLoad({.address = server.address(),
                                    .groups = 2,
                                    .prompt_tokens = 2,
                                    .new_tokens = 2,
                                    .concurrency = 1},
                                   [](int64_t) {});
  ASSERT_THAT(result, testing::IsOk());
  EXPECT_EQ(result->groups[0].code, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(result->groups[1].code, "OK");
}

TEST(ServeLoadTest, NoServerIsAnErrorThatNamesTheAddress) {
  std::string address;
  {
    testing::FakeRolloutServer server;
    address = server.address();
  }
  EXPECT_THAT(RunServeLoad({.address = address}, [](int64_t) {}),
              testing::FailsWith(absl::StatusCode::kUnavailable, address));
}

}  // namespace
}  // namespace tandem::cli
