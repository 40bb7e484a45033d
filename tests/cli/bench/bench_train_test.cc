#include "cli/bench/bench_train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

// Ours trains 100 tokens of 200 in rows in 2, 1 and 4 s; the peer 50 tokens in 4 s.
TrainBenchResult Result() {
  TrainBenchResult result;
  result.body_flops = 1e6;
  result.head_flops = 2e6;
  result.limits = {.flops_per_second = 6e8, .bf16_flops_per_second = 1.2e9};
  result.ours.engine = "tandem";
  result.ours.peak_bytes = 3'000'000'000;
  for (const double seconds : {2.0, 1.0, 4.0}) {
    result.ours.steps.push_back({.step_seconds = seconds + 1,
                                 .generate_seconds = 1,
                                 .train_seconds = seconds,
                                 .trained_tokens = 100,
                                 .row_tokens = 200});
  }
  result.peer = TrainResult{.engine = "trl (microbatch 16)",
                            .steps = {{.step_seconds = 9,
                                       .generate_seconds = 5,
                                       .train_seconds = 4,
                                       .trained_tokens = 50}},
                            .peak_bytes = 5'000'000'000};
  return result;
}

TEST(TrainBenchTest, RatiosAreOfTimeForATrainedToken) {
  const auto json = nlohmann::json::parse(ToJson({}, Result()));
  // Medians 3, 1 and 2 s for 100 tokens; 9, 5 and 4 s for 50.
  EXPECT_DOUBLE_EQ(json["ratio"]["step"], 6);
  EXPECT_DOUBLE_EQ(json["ratio"]["generate"], 10);
  EXPECT_DOUBLE_EQ(json["ratio"]["train"], 4);
  EXPECT_EQ(json["tandem"]["train_seconds"]["least"], 1);
  EXPECT_EQ(json["tandem"]["train_seconds"]["most"], 4);
}

TEST(TrainBenchTest, TheShareOfTheLimitCountsRowsThroughTheBodyAndTrainedTokensThroughTheHead) {
  // 3 x (200 x 1e6 + 100 x 2e6) = 1.2e9 operations: 2 s at the fp32 limit, 1 s at that of bf16.
  EXPECT_DOUBLE_EQ(nlohmann::json::parse(ToJson({}, Result()))["share_of_limit"], 1.0);
  EXPECT_DOUBLE_EQ(nlohmann::json::parse(ToJson({.dtype = "bf16"}, Result()))["share_of_limit"],
                   0.5);
}

TEST(TrainBenchTest, TheTableNamesBothEnginesWithTheirMemory) {
  const std::string text = ToText({}, Result());
  EXPECT_THAT(text, HasSubstr("trl (microbatch 16)"));
  EXPECT_THAT(text, HasSubstr("3.00 GB"));
  EXPECT_THAT(text, HasSubstr("5.00 GB"));
  EXPECT_THAT(text, HasSubstr("4.00x"));
}

TEST(TrainBenchTest, StepsAreReadFromTheMetricsOfARunWithoutTheWarmUp) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  std::ofstream(path) << R"({"step":0,"eval/greedy":0.5}
{"step":1,"time/step":9,"time/rollout":5}
{"step":2,"time/step":7,"time/rollout":3,"time/pack":0.25,"time/proximal":0.5,"time/update":2,)"
                      << R"("loss/num_tokens":640,"loss/num_row_tokens":900,"memory/peak_bytes":7}
)";
  const auto result = ReadTrainSteps(path, 1);
  ASSERT_THAT(result, IsOk());
  ASSERT_EQ(result->steps.size(), 1u);
  EXPECT_EQ(result->steps[0].step_seconds, 7);
  EXPECT_EQ(result->steps[0].generate_seconds, 3);
  EXPECT_EQ(result->steps[0].train_seconds, 2.75);
  EXPECT_EQ(result->steps[0].trained_tokens, 640);
  EXPECT_EQ(result->steps[0].row_tokens, 900);
  EXPECT_EQ(result->peak_bytes, 7);
  std::ofstream(path) << "{\"step\":3}\n";
  EXPECT_THAT(ReadTrainSteps(path, 1),
              FailsWith(absl::StatusCode::kInvalidArgument, "metrics.jsonl:1: no time/step"));
}

}  // namespace
}  // namespace tandem::cli
