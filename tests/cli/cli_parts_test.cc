#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/run/problems.h"
#include "cli/run/progress_view.h"

namespace tandem::cli {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(ProblemsTest, MultiplyHoldsTwentyOfEightyOneOut) {
  const ProblemSet problems = MakeProblems(ArithmeticTask::kMultiply, 1);
  const std::vector<std::string> train = Lines(problems.train_jsonl);
  const std::vector<std::string> held_out = Lines(problems.held_out_jsonl);
  EXPECT_EQ(train.size(), 61u);
  EXPECT_EQ(held_out.size(), 20u);
  std::set<std::string> all(train.begin(), train.end());
  all.insert(held_out.begin(), held_out.end());
  EXPECT_EQ(all.size(), 81u);
  EXPECT_EQ(all.count("{\"messages\":[{\"role\":\"user\",\"content\":\"What is 7 * 8? Answer with "
                      "just the number.\"}],\"answer\":\"56\"}"),
            1u);
}

TEST(ProblemsTest, AddHoldsThirtyTwoOfFourHundredOut) {
  const ProblemSet problems = MakeProblems(ArithmeticTask::kAdd, 1);
  EXPECT_EQ(Lines(problems.train_jsonl).size(), 368u);
  EXPECT_EQ(Lines(problems.held_out_jsonl).size(), 32u);
  EXPECT_NE(problems.train_jsonl.find("What is 20 + 19? "), std::string::npos);
}

TEST(ProblemsTest, TheSeedDecides) {
  const auto make = [](uint64_t seed) {
    return MakeProblems(ArithmeticTask::kMultiply, seed).held_out_jsonl;
  };
  EXPECT_EQ(make(3), make(3));
  EXPECT_NE(make(3), make(4));
}

TEST(JsonLinesTest, WritesNullWhereJsonHasNoNumber) {
  const std::vector<float> values = {0.0f, -0.25f, std::nanf(""),
                                     -std::numeric_limits<float>::infinity()};
  EXPECT_EQ(FloatsToJson(values, 1), "[null,-0.25,null,null]");
}

TEST(JsonLinesTest, NamesAKeyItDoesNotKnow) {
  static constexpr const char* kKeys[] = {"ids", "text"};
  const absl::Status status = CheckKeys(nlohmann::json::parse(R"({"tokens":[1]})"), kKeys);
  EXPECT_EQ(status.message(), "unknown key \"tokens\"; a line may hold ids, text");
}

TEST(JsonLinesTest, RefusesIdsThatAreNotTokenIds) {
  EXPECT_EQ(IdsField(nlohmann::json::parse(R"({"ids":[1,-2]})"), "ids").status().message(),
            "\"ids\"[1]: want a token id, not -2");
  EXPECT_EQ(IdsField(nlohmann::json::parse(R"({"ids":[1.5]})"), "ids").status().message(),
            "\"ids\"[0]: want a token id, not 1.5");
}

TEST(LiveLineTest, ShortDurationsReadWell) {
  EXPECT_EQ(ShortDuration(45.4), "45 s");
  EXPECT_EQ(ShortDuration(187), "3:07 min");
  EXPECT_EQ(ShortDuration(7500), "2:05 h");
}

TEST(LiveLineTest, TheBarFillsWithTheWork) {
  EXPECT_EQ(ProgressBar(0, 4, 8), "[........] 0/4");
  EXPECT_EQ(ProgressBar(3, 4, 8), "[######..] 3/4");
  EXPECT_EQ(ProgressBar(9, 4, 8), "[########] 9/4");
}

TEST(ProgressViewTest, SumsUpTheFirstAndLastThreeSteps) {
  ProgressView view(4);
  for (const char* reward : {"0.1", "0.2", "0.3", "0.8"}) {
    view.Take(std::string("{\"step\":1,\"reward/mean\":") + reward + "}");
  }
  EXPECT_NEAR(view.summary().FirstRewards(), 0.2, 1e-12);
  EXPECT_NEAR(view.summary().LastRewards(), 1.3 / 3, 1e-12);
}

TEST(ProgressViewTest, AnAlertGetsALineWithItsDiagnosisOnce) {
  ProgressView view(4);
  EXPECT_EQ(view.summary().AlertsLine(), "");
  const char* ratio =
      R"({"kind":"alert","name":"ratio","message":"ratio is 2.1","diagnosis":"skipped push"})";
  EXPECT_TRUE(view.Take(ratio));
  EXPECT_EQ(view.text(), "alert: ratio is 2.1 (skipped push)");
  EXPECT_FALSE(view.Take(ratio));
  EXPECT_TRUE(view.Take(R"({"kind":"alert","name":"kl","message":"kl is 1"})"));
  EXPECT_EQ(view.summary().AlertsLine(), "alerts: kl 1x, ratio 2x (see docs/observability.md)\n");
}

TEST(ProgressViewTest, TheFirstFailureOfAnEnvironmentIsShownAndMaskedCompletionsAreCounted) {
  ProgressView view(4);
  EXPECT_EQ(view.summary().MaskedLine(), "");
  EXPECT_TRUE(
      view.Take(R"({"kind":"environment_failed","message":"KeyError: 'x'\nTraceback .."})"));
  EXPECT_EQ(view.text(), "environment_failed: KeyError: 'x'");
  EXPECT_FALSE(view.Take(R"({"kind":"environment_failed","message":"ValueError"})"));
  EXPECT_TRUE(view.Take(R"({"kind":"reward_raised","message":"ValueError"})"));
  for (const int step : {1, 2}) {
    view.Take(absl::StrCat("{\"step\":", step, ",\"reward/mean\":0.5,\"turns/failed\":3}"));
  }
  EXPECT_EQ(view.summary().MaskedLine(),
            "masked: environment_failed 6x (completions without a reward; drop_reason in "
            "rollouts/ of the run says why)\n");
}

TEST(ProgressViewTest, WhatAServerSaidCannotMoveTheCursor) {
  ProgressView view(4);
  EXPECT_TRUE(view.Take(R"({"kind":"server_lost","message":"gone\u001b[2Jclean\u202e"})"));
  EXPECT_EQ(view.text(), "server_lost: gone\\u001b[2Jclean\\u202e");
}

TEST(ProgressViewTest, TheLiveLineSaysThePhaseAndTheNumbersOfTheStepBefore) {
  ProgressView view(4);
  view.Take(R"({"phase":"rollout","step":1})");
  EXPECT_EQ(view.text(), "[....................] 0/4  rollout");
  EXPECT_TRUE(view.Take(R"({"step":1,"reward/mean":0.25,"time/step":3,"drift/mean_abs_delta":0.01,
                            "throughput/sampled_tokens_per_s":120})"));
  EXPECT_EQ(view.text(), "step   1/4  reward 0.250    120 tok/s  drift 1.0e-02  ETA 9 s");
  EXPECT_FALSE(view.Take(R"({"phase":"train","step":2})"));
  EXPECT_EQ(view.text(),
            "[#####...............] 1/4  train  reward 0.250    120 tok/s  drift 1.0e-02  ETA 9 s");
}

TEST(ProgressViewTest, IgnoresWhatIsNotAProgressLine) {
  ProgressView view(4);
  EXPECT_FALSE(view.Take("plain words"));
  EXPECT_FALSE(view.Take("[1]"));
  EXPECT_EQ(view.text(), "");
}

}  // namespace
}  // namespace tandem::cli
