#include "cli/simulate/run_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace tandem::simulate {
namespace {

using ::tandem::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

constexpr char kConfig[] = R"(launch:
  num_servers: 1
server:
  engine:
    max_batch_sequences: 8
trainer:
  prompts_per_step: 2
  completions_per_prompt: 2
  max_staleness: 0
  client:
    groups_in_flight: 8
)";

std::string Line(int step, double rollout, double update, double push, double whole) {
  return absl::StrFormat(
      R"({"step":%d,"length/mean":11,"length/max":11,"push/bytes":100,"push/dense_bytes":1000,)"
      R"("time/rollout":%g,"time/update":%g,"time/push":%g,"time/step":%g})"
      "\n",
      step, rollout, update, push, whole);
}

// Worked out by hand for kMachine: two prompts of 10 tokens at 40 tok/s, then ten steps of four
// completions at 0.1 s; 64 packed tokens at 32 a second and 1 s; 1000 B at 10 kB/s, 100 B at 1
// kB/s, 1000 B at 20 and at 4 kB/s.
constexpr double kRollout = 0.5 + 1.0, kUpdate = 1 + 2.0, kPush = 0.1 + 0.1 + 0.05 + 0.25;

Constants Machine() {
  Constants c = MachineConstants();
  for (const int batch : {1, 8, 32, 64}) {
    c.Set(absl::StrFormat("decode_tokens_per_second_%d", batch), 10 * batch);
  }
  c.Set("prefill_tokens_per_second", 40);
  c.Set("prompt_tokens", 10);
  c.Set("train_tokens_per_second", 32);
  c.Set("train_fixed_seconds", 1);
  c.Set("cast_bytes_per_second", 10e3);
  c.Set("send_bytes_per_second", 1e3);
  c.Set("verify_bytes_per_second", 20e3);
  c.Set("pack_bytes_per_second", 4e3);
  return c;
}

// The first line is the evaluation at the start; the first step is slow.
const std::string kMetrics = "{\"step\":0,\"eval/greedy\":0.5}\n" + Line(1, 9, 9, 9, 27) +
                             Line(2, 1.5, 3, 0.5, 5) + Line(3, 2, 3, 1, 6.25);

TEST(RunCheck, PredictsAStepFromWhatWasSampledAndSent) {
  const RecordedRun run = *ParseRun(kMetrics, kConfig, "run");
  const CheckResult result = *CheckRun(run, Machine(), {});
  ASSERT_EQ(result.steps.size(), 3u);
  for (const CheckedStep& step : result.steps) {
    EXPECT_NEAR(step.predicted.rollout, kRollout, 1e-6);
    EXPECT_NEAR(step.predicted.train, kUpdate, 1e-6);
    EXPECT_NEAR(step.predicted.push, kPush, 1e-6);
    EXPECT_NEAR(step.predicted.step(), 5, 1e-6);
  }
}

TEST(RunCheck, StatesItsErrorWithoutTheFirstStep) {
  const CheckResult result = *CheckRun(*ParseRun(kMetrics, kConfig, "run"), Machine(), {});
  EXPECT_NEAR(result.Error(), 10 / 11.25 - 1, 1e-6);
  EXPECT_NEAR(result.MeanAbsoluteError(), (0 + 0.2) / 2, 1e-6);
  EXPECT_THAT(ToText(result), HasSubstr("predicted over real -11.1 %, mean of a step's absolute "
                                        "error 10.0 %"));
  const nlohmann::json json = nlohmann::json::parse(ToJson(result));
  EXPECT_NEAR(json["error"].get<double>(), 10 / 11.25 - 1, 1e-6);
  EXPECT_EQ(json["steps"][2]["real"]["step"], 6.25);
  EXPECT_NEAR(json["steps"][2]["predicted"]["rollout"].get<double>(), 1.5, 1e-6);
}

TEST(RunCheck, ScalesOfAnotherRunMakeThePartsAsSlowAsTheyWereThere) {
  const std::string slow =
      Line(1, 9, 9, 9, 27) + Line(2, 3, 3, 0.25, 6.25) + Line(3, 3, 6, 0.75, 9.75);
  const Scales scales = *FitScales(*ParseRun(slow, kConfig, "slow"), Machine());
  EXPECT_NEAR(scales.rollout, 2, 1e-6);
  EXPECT_NEAR(scales.update, 1.5, 1e-6);
  EXPECT_NEAR(scales.push, 1, 1e-6);
  const CheckResult result = *CheckRun(*ParseRun(kMetrics, kConfig, "run"), Machine(), scales);
  EXPECT_NEAR(result.steps[1].predicted.rollout, 2 * kRollout, 1e-6);
  EXPECT_NEAR(result.steps[1].predicted.train, 1.5 * kUpdate, 1e-6);
}

TEST(RunCheck, AtStalenessOneTheSharedCoresDoTheSameWork) {
  const std::string config =
      absl::StrReplaceAll(kConfig, {{"max_staleness: 0", "max_staleness: 1"}});
  std::string metrics;
  for (int step = 1; step <= 12; ++step) metrics += Line(step, 1.5, 3, 0.5, 5);
  const RecordedRun run = *ParseRun(metrics, config, "run");
  const CheckResult result = *CheckRun(run, Machine(), {});
  // Training and push hide the sampling, but slow down by as much.
  EXPECT_NEAR(result.steps[8].predicted.rollout, 0, 1e-6);
  EXPECT_NEAR(result.steps[8].predicted.step(), 5, 0.05);
  EXPECT_THAT(FitScales(run, Machine()), FailsWith(kInvalid, "at max_staleness 0"));
}

TEST(RunCheck, WithoutRolloutsCompletionsAreAlikeButForTheLongest) {
  const std::string line = absl::StrReplaceAll(
      Line(1, 1, 1, 1, 3),
      {{"\"length/mean\":11", "\"length/mean\":8"}, {"\"length/max\":11", "\"length/max\":16"}});
  const RecordedRun run = *ParseRun(line, kConfig, "run");
  EXPECT_THAT(run.steps[0].lengths, ElementsAre(ElementsAre(16, 5), ElementsAre(5, 6)));
}

TEST(RunCheck, AResumedRunCountsTheLastLineOfAStep) {
  const RecordedRun run =
      *ParseRun(Line(1, 1, 1, 1, 3) + Line(2, 1, 1, 1, 4) + Line(2, 2, 2, 2, 6), kConfig, "run");
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[1].whole, 6);
}

TEST(RunCheck, WhatCannotBeReadIsNamedWithItsPlace) {
  EXPECT_THAT(ParseRun("", kConfig, "run"),
              FailsWith(kInvalid, "run/metrics.jsonl: no train step"));
  EXPECT_THAT(ParseRun("{\"step\":1}\n", kConfig, "run"),
              FailsWith(kInvalid, "run/metrics.jsonl:1: no number length/mean"));
  EXPECT_THAT(ParseRun(Line(1, 1, 1, 1, 3) + "{\"ste", kConfig, "run"),
              FailsWith(kInvalid, "run/metrics.jsonl:2: not a line of a train step"));
  EXPECT_THAT(ParseRun(Line(2, 1, 1, 1, 3), kConfig, "run"),
              FailsWith(kInvalid, "step 1 is missing"));
  EXPECT_THAT(ParseRun(Line(1, 1, 1, 1, 0), kConfig, "run"), FailsWith(kInvalid, "time/step is 0"));
  EXPECT_THAT(ParseRun(kMetrics, "trainer: {prompts_per_step: 2}", "run"),
              FailsWith(kInvalid, "run/config.yaml: no trainer.completions_per_prompt"));
  EXPECT_THAT(ParseRun(kMetrics, "trainer: {prompts_per_step: many}", "run"),
              FailsWith(kInvalid, "trainer.prompts_per_step is not a whole number"));
  EXPECT_THAT(ParseRun(kMetrics, "trainer: [", "run"), FailsWith(kInvalid, "run/config.yaml: "));
  EXPECT_THAT(ReadRun("/no/such/run"), FailsWith(absl::StatusCode::kNotFound, "metrics.jsonl"));
}

}  // namespace
}  // namespace tandem::simulate
