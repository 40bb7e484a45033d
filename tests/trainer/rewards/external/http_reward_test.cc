// The component `http` against a real server on the loopback.
#include "trainer/rewards/external/http_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The length of each completion.
JsonService::Reply LengthsOf(const JsonService::Request& request) {
  const json asked = json::parse(request.body);
  json rewards = json::array();
  for (const json& input : asked["inputs"]) {
    rewards.push_back(input["completion"].get<std::string>().size());
  }
  return {.body = json{{"rewards", rewards}}.dump()};
}

RewardOptions OptionsFor(const std::string& url) {
  RewardOptions options;
  options.weights = {{"http", 1}};
  options.http.client.url = url;
  options.http.service.retry_initial_seconds = 0;
  options.http.service.workers = 2;
  return options;
}

std::vector<Reward> ScoreTexts(RewardFunction& rewards, const std::vector<std::string>& texts) {
  return rewards.Score(HeldCompletions(texts)->inputs());
}

TEST(HttpReward, SendsBatchesAndTakesRewardsInOrder) {
  JsonService service(LengthsOf);
  RewardOptions options = OptionsFor(service.url() + "/score");
  options.http.batch_size = 2;
  options.http.service.workers = 1;
  options.http.client.headers = {"X-Team: red"};
  auto rewards = *RewardFunction::Create(options);
  const auto scored = ScoreTexts(*rewards, {"a", "bb", "ccc"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
  EXPECT_DOUBLE_EQ(scored[2].value, 3);
  const auto requests = service.requests();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].path, "/score");
  EXPECT_EQ(requests[0].headers.at("X-Team"), "red");
  EXPECT_EQ(json::parse(requests[0].body)["inputs"][1], (json{{"prompt", "What?"},
                                                              {"completion", "bb"},
                                                              {"answer", "42"},
                                                              {"source", {{"k", 3}}},
                                                              {"truncated", false}}));
}

TEST(HttpReward, RepeatsAfterABusyAndABrokenAnswer) {
  std::atomic<int> calls = 0;
  JsonService service([&](const JsonService::Request& request) -> JsonService::Reply {
    if (++calls == 1) return {.status = 429, .body = "busy", .header = "Retry-After: 0"};
    if (calls == 2) return {.status = 503, .body = "starting"};
    return LengthsOf(request);
  });
  auto rewards = *RewardFunction::Create(OptionsFor(service.url()));
  const auto scored = ScoreTexts(*rewards, {"ab"});
  EXPECT_DOUBLE_EQ(scored[0].value, 2) << scored[0].mask_reason;
  EXPECT_EQ(calls, 3);
}

TEST(HttpReward, AnAnswerWithoutTheRightNumberOfRewardsMasksAll) {
  JsonService service([](const auto&) { return JsonService::Reply{.body = R"({"rewards":[1]})"}; });
  RewardOptions options = OptionsFor(service.url());
  options.http.service.workers = 1;
  auto rewards = *RewardFunction::Create(options);
  for (const Reward& reward : ScoreTexts(*rewards, {"a", "b"})) {
    EXPECT_THAT(reward.mask_reason,
                HasSubstr("reward_failed: http: reward service gave 1 rewards for 2 completions"));
  }
  EXPECT_THAT(service.requests(), SizeIs(1)) << "asking again would not help";
}

TEST(HttpReward, EachCompletionHasItsOwnErrorsAndSteps) {
  JsonService service([](const auto&) {
    return JsonService::Reply{
        .body = R"({"rewards":[{"reward":1,"steps":[{"end":2,"reward":0.5}]},{"error":"empty"},)"
                R"({"reward":null},2]})"};
  });
  RewardOptions options = OptionsFor(service.url());
  options.http.service.workers = 1;
  auto rewards = *RewardFunction::Create(options);
  const auto scored = ScoreTexts(*rewards, {"abc", "b", "c", "d"});
  ASSERT_THAT(scored[0].steps, SizeIs(1));
  EXPECT_EQ(scored[0].steps[0].end_byte, 2);
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward service reports: \"empty\""));
  EXPECT_THAT(scored[2].mask_reason, HasSubstr("\"reward\" is not a finite number"));
  EXPECT_DOUBLE_EQ(scored[3].value, 2);
}

TEST(HttpReward, AServiceThatIsGoneOpensTheBreakerAndLaterCompletionsNameIt) {
  std::string url;
  {
    JsonService service(LengthsOf);
    url = service.url();
  }
  RewardOptions options = OptionsFor(url);
  options.http.service.breaker_failures = 2;
  options.http.service.workers = 1;
  auto rewards = *RewardFunction::Create(options);
  EXPECT_THAT(ScoreTexts(*rewards, {"a"})[0].mask_reason, HasSubstr("the circuit breaker is open"));
  EXPECT_THAT(ScoreTexts(*rewards, {"b"})[0].mask_reason,
              HasSubstr("reward_failed: http: the circuit breaker is open after 2 failures"));
  EXPECT_THAT(rewards->tally()->TakeEvents(), SizeIs(1));
}

TEST(HttpReward, ARefusalIsNotRepeatedAndShowsWhatTheServiceSaid) {
  JsonService service(
      [](const auto&) { return JsonService::Reply{.status = 401, .body = "who are you?"}; });
  auto rewards = *RewardFunction::Create(OptionsFor(service.url()));
  EXPECT_THAT(ScoreTexts(*rewards, {"a"})[0].mask_reason, HasSubstr("answered 401: who are you?"));
  EXPECT_THAT(service.requests(), SizeIs(1));
}

TEST(HttpReward, ShowsTheTokenThatIsInTheFileNow) {
  TempDir directory;
  ASSERT_THAT(WriteFileAtomically(directory / "token", "first\nsecond line\n"), IsOk());
  JsonService service(LengthsOf);
  RewardOptions options = OptionsFor(service.url());
  options.http.client.token_file = directory / "token";
  auto rewards = *RewardFunction::Create(options);
  ScoreTexts(*rewards, {"a"});
  ASSERT_THAT(WriteFileAtomically(directory / "token", "renewed\n"), IsOk());
  ScoreTexts(*rewards, {"b"});
  EXPECT_EQ(service.requests()[0].authorization, "Bearer first");
  EXPECT_EQ(service.requests()[1].authorization, "Bearer renewed");
}

TEST(HttpReward, AServiceThatDoesNotAnswerIsLeftWhenTheRunEnds) {
  std::latch asked(1), release(1);
  JsonService service([&](const auto&) {
    asked.count_down();
    release.wait();
    return JsonService::Reply{.body = "{}"};
  });
  auto rewards = *RewardFunction::Create(OptionsFor(service.url()));
  std::thread ends([&] {
    asked.wait();
    rewards->Cancel();
  });
  EXPECT_THAT(ScoreTexts(*rewards, {"a"})[0].mask_reason, HasSubstr("http: the run ends"));
  ends.join();
  release.count_down();
}

TEST(HttpReward, TheSameCompletionIsAskedAboutOnce) {
  JsonService service(LengthsOf);
  RewardOptions options = OptionsFor(service.url());
  auto rewards = *RewardFunction::Create(options);
  const auto scored = ScoreTexts(*rewards, {"a", "a", "a"});
  EXPECT_DOUBLE_EQ(scored[2].value, 1);
  EXPECT_EQ(json::parse(service.requests()[0].body)["inputs"].size(), 1u);
  ScoreTexts(*rewards, {"a"});
  EXPECT_THAT(service.requests(), SizeIs(1));
  EXPECT_EQ(rewards->tally()->TakeNumbers().cache_hits, 3);
}

TEST(HttpReward, RefusesOptionsThatCannotWorkOrAreUnsafe) {
  const auto create = [](HttpClientOptions client) {
    RewardOptions options;
    options.weights = {{"http", 1}};
    options.http.client = std::move(client);
    return RewardFunction::Create(options).status();
  };
  TempDir directory;
  ASSERT_THAT(WriteFileAtomically(directory / "token", "abc\n"), IsOk());
  EXPECT_THAT(create({}), FailsWith(kInvalidArgument, "reward.http.url is ''"));
  EXPECT_THAT(create({.url = "ftp://a"}), FailsWith(kInvalidArgument, "want the http://"));
  EXPECT_THAT(create({.url = "http://judge:80/x", .token_file = directory / "token"}),
              FailsWith(kInvalidArgument, "never travels in plaintext to another machine"));
  EXPECT_THAT(create({.url = "http://127.0.0.1.evil.example/", .token_file = directory / "token"}),
              FailsWith(kInvalidArgument, "never travels in plaintext to another machine"));
  EXPECT_THAT(create({.url = "http://127.0.0.1/x", .token_file = directory / "token"}), IsOk());
  EXPECT_THAT(create({.url = "https://user:secret@judge/"}),
              FailsWith(kInvalidArgument, "reward.http.url has a user or a password"));
  EXPECT_THAT(create({.url = "https://judge", .token_file = directory / "none"}),
              FailsWith(kInvalidArgument, "none"));
  EXPECT_THAT(create({.url = "https://judge", .headers = {"no header"}}),
              FailsWith(kInvalidArgument, "'no header' is no \"Name: value\""));
  EXPECT_THAT(create({.url = "https://judge", .verify_tls = false}),
              FailsWith(kInvalidArgument, "reward.http.verify_tls is off"));
}

TEST(ParseRewardReply, WantsAListOfRewards) {
  const auto questions = QuestionsAbout({"a"});
  EXPECT_THAT(ParseRewardReply("hello", questions),
              FailsWith(kInvalidArgument, "wrote 'hello', want {\"rewards\":[..]}"));
  EXPECT_THAT(ParseRewardReply("[1]", questions), FailsWith(kInvalidArgument, "want {\"rewards\""));
  EXPECT_THAT(ParseRewardReply(R"({"rewards":[1]})", questions), IsOk());
}

TEST(ParseRewardReply, ARewardThatIsNotFiniteMasksItsOwnCompletion) {
  const auto questions = QuestionsAbout({"a", "b", "c"});
  const auto answers = ParseRewardReply(R"({"rewards":[NaN, 0.5, 1e999]})", questions);
  ASSERT_THAT(answers, IsOk());
  EXPECT_FALSE((*answers)[0].ok());
  ASSERT_THAT((*answers)[1], IsOk());
  EXPECT_EQ((*answers)[1]->value, 0.5);
  EXPECT_FALSE((*answers)[2].ok());
}

TEST(RetryAfterSeconds, ReadsSecondsAndDates) {
  EXPECT_DOUBLE_EQ(RetryAfterSeconds("120", 0), 120);
  EXPECT_DOUBLE_EQ(RetryAfterSeconds("-3", 0), 0);
  EXPECT_DOUBLE_EQ(RetryAfterSeconds("Wed, 21 Oct 2015 07:28:00 GMT", 1445412470), 10);
  EXPECT_DOUBLE_EQ(RetryAfterSeconds("Wed, 21 Oct 2015 07:28:00 GMT", 1445412999), 0);
  EXPECT_DOUBLE_EQ(RetryAfterSeconds("soon", 0), 0);
  EXPECT_DOUBLE_EQ(RetryAfterSeconds("", 0), 0);
}

}  // namespace
}  // namespace tandem::trainer
