#include "cli/bench/bench_push.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

// 100 MB to two servers in 0.5, 0.25 and 1 s, of which half is the bytes' way.
PushBenchResult Result() {
  PushBenchResult result = {
      .dense_bytes = 100'000'000, .num_parameters = 50'000'000, .loopback_bytes_per_second = 1e9};
  PushRow row = {.servers = 2, .transport = "collective", .is_delta = true};
  for (const double seconds : {0.5, 0.25, 1.0}) {
    row.pushes.push_back({.seconds = seconds,
                          .send_seconds = seconds / 2,
                          .verify_seconds = seconds / 10,
                          .pause_seconds = 0.002,
                          .wire_bytes = 5'000'000});
  }
  result.rows.push_back(row);
  return result;
}

TEST(PushBenchTest, RatesAreOfWeightsThatArrivedAndSharesOfBytesThatTravelled) {
  const std::string text = ToText(Result());
  EXPECT_THAT(text,
              HasSubstr("0.500   (0.250 - 1.000)      5.0     0.40"));  // 2 x 100 MB in 0.5 s
  EXPECT_THAT(text, HasSubstr("4 %    10.00"));  // 2 x 5 MB in 0.25 s of 1 GB/s; 0.5 s for 5e7
  EXPECT_THAT(text, HasSubstr("10.0%"));         // verification
  EXPECT_THAT(text, HasSubstr("2.00"));          // ms of pause
}

TEST(PushBenchTest, GapsBetweenTokensAreShownWhereThereWasLoad) {
  PushBenchResult result = Result();
  EXPECT_THAT(ToText(result), ::testing::Not(HasSubstr("between two tokens")));
  result.quiet_gaps_ms = {5, 7, 9};
  result.rows[0].token_gaps_ms = {6, 8, 40};
  EXPECT_THAT(ToText(result), HasSubstr("without pushes: p50 7 ms, p99 9 ms, longest 9 ms"));
  const auto json = nlohmann::json::parse(ToJson(result));
  EXPECT_EQ(json["rows"][0]["longest_token_gap_ms"]["most"], 40);
  EXPECT_EQ(json["rows"][0]["push_seconds"]["median"], 0.5);
}

}  // namespace
}  // namespace tandem::cli
