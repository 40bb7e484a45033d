#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/simulate/cluster_plan.h"
#include "cli/simulate/constants.h"
#include "tests/support/status_matchers.h"

namespace tandem::simulate {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::HasSubstr;

constexpr auto kInvalidInput = absl::StatusCode::kInvalidArgument;

std::vector<int64_t> Draws(const std::string& text, uint64_t seed, int64_t count) {
  const LengthDistribution lengths = *LengthDistribution::Parse(text);
  std::vector<int64_t> draws;
  for (int64_t i = 0; i < count; ++i) draws.push_back(lengths.Draw(seed, i / 16, i % 16));
  return draws;
}

TEST(LengthDistribution, AreAFunctionOfSeedGroupAndMember) {
  const std::string text = "lognormal:3000:0.8:16384";
  EXPECT_EQ(Draws(text, 1, 100), Draws(text, 1, 100));
  EXPECT_NE(Draws(text, 1, 100), Draws(text, 2, 100));
}

TEST(LengthDistribution, FixedLengthsAreAllAlikeAndUniformOnesReachBothEnds) {
  for (const int64_t length : Draws("fixed:7", 1, 20)) EXPECT_EQ(length, 7);
  const std::vector<int64_t> draws = Draws("uniform:3-5", 1, 3000);
  for (const int64_t length : {3, 4, 5}) {
    EXPECT_NEAR(static_cast<double>(std::ranges::count(draws, length)), 1000, 4 * 26) << length;
  }
  EXPECT_EQ(std::ranges::min(draws), 3);
  EXPECT_EQ(std::ranges::max(draws), 5);
}

TEST(LengthDistribution, ALogNormalHasItsMeanAndTheSigmaOfItsLogarithmAndItsLimit) {
  const std::vector<int64_t> draws = Draws("lognormal:1000:0.5:1000000", 1, 20000);
  double mean = 0, log_mean = 0, log_square = 0;
  for (const int64_t length : draws) {
    const double log_length = std::log(static_cast<double>(length));
    mean += static_cast<double>(length) / 20000;
    log_mean += log_length / 20000;
    log_square += log_length * log_length / 20000;
  }
  EXPECT_NEAR(mean, 1000, 4 * 533 / std::sqrt(20000.0));  // sd: 1000 sqrt(e^0.25 - 1)
  EXPECT_NEAR(std::sqrt(log_square - log_mean * log_mean), 0.5, 0.01);
  const std::vector<int64_t> cut = Draws("lognormal:1000:0.5:900", 1, 1000);
  EXPECT_EQ(std::ranges::max(cut), 900);
}

TEST(LengthDistribution, OtherTextsAreRefusedWithWhatIsWanted) {
  for (const char* text : {"", "7", "fixed", "fixed:0", "fixed:1:2", "uniform:5-3", "uniform:1",
                           "lognormal:10:9:20", "lognormal:10:1", "fixed:1e99", "fixed:nan"}) {
    EXPECT_THAT(LengthDistribution::Parse(text), FailsWith(kInvalidInput, "want fixed:N")) << text;
  }
}

TEST(Constants, EachHasASourceAndAssumptionsThatAreVariedHaveTheirValueInTheRange) {
  for (const Constants& constants : {ClusterConstants(), MachineConstants()}) {
    for (const Constant& c : constants.table()) {
      EXPECT_NE(c.source, "") << c.name;
      if (c.high <= 0) continue;
      EXPECT_LE(c.low, c.value) << c.name;
      EXPECT_GE(c.high, c.value) << c.name;
    }
  }
}

TEST(Constants, PublishedFiguresAreThoseOfTheDatasheet) {
  const Constants c = ClusterConstants();
  EXPECT_EQ(c["device_flops"], 989e12);
  EXPECT_EQ(c["hbm_bytes_per_second"], 3.35e12);
  EXPECT_EQ(2 * c["nvlink_bytes_per_second"], 900e9);
  EXPECT_EQ(8 * c["nic_bytes_per_second"], 400e9);
}

TEST(Constants, AFileGoesOverTheBuiltInOnesAndWhatIsPrintedCanBeReadBack) {
  Constants constants = ClusterConstants();
  ASSERT_THAT(
      constants.Override(
          R"({"train_mfu":{"value":0.35,"source":"our cluster","low":0.3,"high":0.4}})", "f"),
      IsOk());
  EXPECT_EQ(constants["train_mfu"], 0.35);
  EXPECT_EQ(constants["device_flops"], 989e12);
  Constants again = ClusterConstants();
  ASSERT_THAT(again.Override(constants.ToJson(), "printed"), IsOk());
  EXPECT_EQ(again.ToJson(), constants.ToJson());
  EXPECT_THAT(constants.ToMarkdown(), HasSubstr("| `train_mfu` | 0.35 of device_flops | 0.3 to 0.4 "
                                                "| measured | our cluster |"));
}

TEST(Constants, AFileThatMakesNoSenseIsRefusedByNameAndPlace) {
  Constants constants = ClusterConstants();
  const auto file = [&](const std::string& json) { return constants.Override(json, "c.json"); };
  EXPECT_THAT(file("{"), FailsWith(kInvalidInput, "c.json: not JSON"));
  EXPECT_THAT(file("[]"), FailsWith(kInvalidInput, "want an object"));
  EXPECT_THAT(file(R"({"train_muf":{"value":1,"source":"x"}})"),
              FailsWith(kInvalidInput, "unknown constant train_muf; nearest: train_mfu"));
  EXPECT_THAT(file(R"({"train_mfu":0.4})"),
              FailsWith(kInvalidInput, "train_mfu: no number \"value\""));
  EXPECT_THAT(file(R"({"train_mfu":{"value":-1,"source":"x"}})"),
              FailsWith(kInvalidInput, "-1 is not positive"));
  EXPECT_THAT(file(R"({"train_mfu":{"value":0,"source":"x"}})"),
              FailsWith(kInvalidInput, "0 is not positive"));
  EXPECT_THAT(file(R"({"train_mfu":{"value":0.4}})"), FailsWith(kInvalidInput, "no \"source\""));
}

}  // namespace
}  // namespace tandem::simulate
