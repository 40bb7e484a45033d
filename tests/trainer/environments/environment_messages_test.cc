#include "trainer/environments/environment_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(EnvironmentMessages, TheFirstLineSaysWhatPlays) {
  EnvironmentOptions options;
  options.python = "guess.py:Guess";
  options.kwargs = {{"highest", "100"}};
  options.max_turns = 4;
  EXPECT_EQ(
      EnvironmentHello(options, "T"),
      R"({"environment":{"kind":"python","spec":"guess.py:Guess"},"kwargs":{"highest":"100"},)"
      R"("chat_template":"T","max_turns":4,"row":null})"
      "\n");
  EnvironmentOptions tools;
  tools.tools = {"a.py:f", "a.py:g"};
  EXPECT_THAT(EnvironmentHello(tools, ""),
              HasSubstr(R"({"kind":"tools","specs":["a.py:f","a.py:g"]})"));
  EnvironmentOptions server;
  server.openenv = "http://h:1";
  EXPECT_THAT(EnvironmentHello(server, ""), HasSubstr(R"({"kind":"openenv","spec":"http://h:1"})"));
  EnvironmentOptions other;
  other.verifiers = "wordle";
  EXPECT_THAT(EnvironmentHello(other, ""), HasSubstr(R"({"kind":"verifiers","spec":"wordle"})"));
}

TEST(EnvironmentMessages, AnEpisodeIsOpenedWithTheTurnsThatItHad) {
  const EpisodeStart start = {.row_json = R"({"secret":7})", .prompt = "P", .seed = 3};
  EXPECT_EQ(OpenLine(12, start, {{"5", R"([{"role":"user","content":"higher"}])"}}),
            R"({"open":12,"row":{"secret":7},"prompt":"P","seed":3,"history":[{"text":"5",)"
            R"("messages":[{"role":"user","content":"higher"}]}]})"
            "\n");
  EXPECT_EQ(OpenLine(1, {.row_json = "no JSON"}, {}),
            R"({"open":1,"row":{},"prompt":null,"seed":0,"history":[]})"
            "\n");
}

TEST(EnvironmentMessages, ATurnSaysHowItEnded) {
  EXPECT_EQ(StepLine(2, {.turn = 3, .text = "a\nb"}),
            R"({"step":2,"turn":3,"text":"a\nb","finish_reason":"stop","is_last":false})"
            "\n");
  EXPECT_EQ(StepLine(2, {.turn = 3, .text = "", .was_cut = true, .is_last = true}),
            R"({"step":2,"turn":3,"text":"","finish_reason":"length","is_last":true})"
            "\n");
}

TEST(EnvironmentMessages, AReplyHasMessagesARewardAndNumbers) {
  const auto reply = ReadEnvironmentReply(
      R"({"episode":2,"turn":1,"messages":[{"role":"tool","content":"42"}],"reward":0.5,)"
      R"("done":false,"info":{"calls":2,"late":true,"name":"x"},"seconds":0.25})");
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply->episode, 2);
  EXPECT_EQ(reply->turn, 1);
  EXPECT_EQ(reply->messages_json, R"([{"role":"tool","content":"42"}])");
  EXPECT_EQ(reply->reward, 0.5);
  EXPECT_FALSE(reply->done);
  EXPECT_THAT(reply->info, ElementsAre(Pair("calls", 2), Pair("late", 1)));
  EXPECT_EQ(reply->seconds, 0.25);
  EXPECT_EQ(
      ReadEnvironmentReply(R"({"episode":2,"turn":1,"messages":[],"reward":null,"done":true})")
          ->reward,
      std::nullopt);
}

TEST(EnvironmentMessages, AnErrorOfAnEpisodeKeepsItsTraceback) {
  const auto reply = ReadEnvironmentReply(
      R"x({"episode":2,"turn":1,"error":"ValueError: why (guess.py:12)","traceback":"T"})x");
  ASSERT_THAT(reply, IsOk());
  EXPECT_THAT(reply->failure,
              FailsWith(absl::StatusCode::kAborted, "ValueError: why (guess.py:12)"));
  EXPECT_EQ(reply->traceback, "T");
}

TEST(EnvironmentMessages, WhatIsNoReplyIsAnError) {
  for (const char* const line :
       {"", "x", "[]", R"({"turn":1,"messages":[]})", R"({"episode":1,"messages":[]})",
        R"({"episode":1,"turn":1})", R"({"episode":1,"turn":1,"messages":{}})",
        R"({"episode":1,"turn":1,"messages":[],"done":false})"}) {
    EXPECT_THAT(ReadEnvironmentReply(line),
                FailsWith(absl::StatusCode::kInvalidArgument, "is no reply"))
        << line;
  }
  EXPECT_THAT(ReadEnvironmentReply(R"({"episode":1,"turn":0,"messages":[]})"), IsOk())
      << "an opening may say nothing";
}

TEST(EnvironmentMessages, TheToolsOfAnEnvironmentAreKeptAsTheyAre) {
  std::string traceback;
  EXPECT_EQ(*ReadEnvironmentReady(R"({"ready":true,"tools":[]})", &traceback), "");
  EXPECT_EQ(*ReadEnvironmentReady(R"({"ready":true,"tools":[{"b":1,"a":2}]})", &traceback),
            R"([{"b":1,"a":2}])");
  EXPECT_THAT(ReadEnvironmentReady(R"({"error":"no such class","traceback":"T"})", &traceback),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no such class"));
  EXPECT_EQ(traceback, "T");
}

TEST(EnvironmentMessages, RowsEndWithTheirNumber) {
  EXPECT_EQ(*ReadRow(R"({"row":{"prompt":"a"}})"), R"({"prompt":"a"})");
  EXPECT_EQ(*ReadRow(R"({"rows":1})"), std::nullopt);
  EXPECT_THAT(ReadRow(R"({"error":"none"})"), FailsWith(absl::StatusCode::kAborted, "none"));
  EXPECT_THAT(ReadRow("?"), FailsWith(absl::StatusCode::kInvalidArgument, "no reply"));
}

}  // namespace
}  // namespace tandem::trainer
