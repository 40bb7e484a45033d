#include "cli/bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

// 100 tokens decoded in 2, 1 and 4 s; reading 1e9 bytes at 1e9 bytes a second takes 1 s at least.
BenchTable Table() {
  BenchTable table;
  for (const double seconds : {2.0, 1.0, 4.0}) {
    table.rows["decode-1"]["tandem"].push_back(
        {.prefill = {.seconds = 1, .tokens = 10},
         .decode = {.seconds = seconds, .tokens = 100, .work = {.bytes = 1e9, .flops = 1e6}}});
    table.rows["decode-1"]["other"].push_back(
        {.prefill = {.seconds = 2, .tokens = 10}, .decode = {.seconds = 4, .tokens = 100}});
    table.limits.push_back({.read_bytes_per_second = 1e9, .flops_per_second = 1e9});
  }
  return table;
}

const std::vector<BenchCase> kCases = {{"decode-1", BenchKind::kDecode, 1, 1, 10, 101}};

TEST(BenchTable, GivesMediansSpreadsSharesOfTheLimitAndRatiosRepeatByRepeat) {
  const nlohmann::json row =
      nlohmann::json::parse(ToJson(Table(), kCases))["cases"]["decode-1"]["decode"];
  EXPECT_EQ(row["tandem"]["tokens_per_second"]["median"], 50);
  EXPECT_EQ(row["tandem"]["tokens_per_second"]["least"], 25);
  EXPECT_EQ(row["tandem"]["tokens_per_second"]["most"], 100);
  EXPECT_EQ(row["tandem"]["share_of_limit"]["median"], 0.5);
  EXPECT_EQ(row["tandem"]["share_of_limit"]["most"], 1.0);
  EXPECT_EQ(row["other"]["tokens_per_second"]["median"], 25);
  EXPECT_EQ(row["other"]["ratio"]["median"], 2);
  EXPECT_EQ(row["other"]["ratio"]["least"], 1);
  EXPECT_EQ(row["other"]["ratio"]["most"], 4);
}

TEST(BenchTable, TheTextHasARowForEachEngineAndPart) {
  const std::string text = ToText(Table(), kCases);
  EXPECT_THAT(text, HasSubstr("reads 1.0 GB/s, multiplies 1 GFLOP/s"));
  EXPECT_THAT(text, HasSubstr("50 %"));
  EXPECT_THAT(text, HasSubstr("2.00x (1.00 - 4.00)"));
  EXPECT_THAT(text, HasSubstr("prefill  other"));
}

TEST(BenchTable, AFirstTokenIsATimeAndTheRatioIsOfTimes) {
  BenchTable table;
  table.limits.push_back({.read_bytes_per_second = 1e9, .flops_per_second = 1e9});
  table.rows["first-token-8"]["tandem"].push_back({.prefill = {.seconds = 0.6, .tokens = 512}});
  table.rows["first-token-8"]["one sample"].push_back({.prefill = {.seconds = 0.5}});
  const std::vector<BenchCase> cases = {*ParseCase("first-token-8", 64, 128)};
  const nlohmann::json row =
      nlohmann::json::parse(ToJson(table, cases))["cases"]["first-token-8"]["first"];
  EXPECT_DOUBLE_EQ(row["tandem"]["milliseconds"]["median"], 600);
  EXPECT_DOUBLE_EQ(row["one sample"]["ratio"]["median"], 1.2);
  EXPECT_THAT(ToText(table, cases), HasSubstr("600.0 ms"));
}

TEST(BenchCases, AreReadFromTheirNames) {
  const BenchCase decode = *ParseCase("decode-32", 64, 128);
  EXPECT_EQ(decode.batch, 32);
  EXPECT_EQ(decode.group, 8);
  EXPECT_EQ(decode.prompt_tokens, 64);
  EXPECT_EQ(decode.new_tokens, 128);
  EXPECT_EQ(ParseCase("decode-5", 64, 128)->group, 5);
  EXPECT_EQ(ParseCase("decode-9", 64, 128)->group, 1);
  const BenchCase first = *ParseCase("first-token-8", 64, 128);
  EXPECT_EQ(first.group, 8);
  EXPECT_EQ(first.prompt_tokens, 512);
  EXPECT_EQ(first.new_tokens, 1);
  EXPECT_EQ(ParseCase("prefill-8", 64, 128)->group, 1);
}

TEST(BenchCases, OfOtherNamesAreRefused) {
  for (const char* name : {"decode", "decode-0", "decode-x", "-3", "", "first-8"}) {
    EXPECT_THAT(ParseCase(name, 64, 128),
                testing::FailsWith(absl::StatusCode::kInvalidArgument, "want decode-N"));
  }
}

TEST(BenchPeer, OneThatIsNowhereIsNamedWithWhereItWasLookedFor) {
  EXPECT_THAT(FindPeer("nobody", "m", "bf16", 2),
              testing::FailsWith(absl::StatusCode::kNotFound, "tests/bench/peers/nobody.py"));
}

}  // namespace
}  // namespace tandem::cli
