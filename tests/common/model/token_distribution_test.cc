#include "common/model/token_distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace tandem {
namespace {

std::vector<float> RandomLogits(int64_t size) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(size);
  for (float& x : logits) x = normal(random);
  return logits;
}

class TokenDistributionTest : public ::testing::TestWithParam<InstructionSet> {};

TEST_P(TokenDistributionTest, HandWorkedValuesForThreeTokens) {
  // p = 1/2, 1/4, 1/4: entropy 3/2 ln 2; second moment 1/2 (ln 2)^2 + 1/2 (2 ln 2)^2.
  const double ln2 = std::log(2.0);
  const std::vector<float> logits = {static_cast<float>(ln2), 0, 0};
  std::vector<float> exps(3);
  double block_mass = 0;
  const TokenDistribution d = DistributionOf(GetParam(), logits, 1, exps.data(), &block_mass);
  EXPECT_FLOAT_EQ(d.LogProb(logits[0]), static_cast<float>(-ln2));
  EXPECT_FLOAT_EQ(d.LogProb(logits[2]), static_cast<float>(-2 * ln2));
  EXPECT_FLOAT_EQ(d.entropy(), static_cast<float>(1.5 * ln2));
  EXPECT_FLOAT_EQ(d.second_moment(), static_cast<float>(2.5 * ln2 * ln2));
  EXPECT_FLOAT_EQ(exps[1], 0.5f);
  EXPECT_FLOAT_EQ(static_cast<float>(block_mass), 2.0f);
}

TEST_P(TokenDistributionTest, AgreesWithSumsInDoublePrecisionForAnySize) {
  for (const int64_t size : {1, 15, 16, 511, 512, 513, 5000}) {
    const std::vector<float> logits = RandomLogits(size);
    for (const float inverse : {1.0f, 0.5f, 3.0f}) {
      const TokenDistribution d = DistributionOf(GetParam(), logits, inverse);
      double mass = 0;
      for (const float x : logits) mass += std::exp(double{x} * inverse);
      const double want = double{logits[0]} * inverse - std::log(mass);
      EXPECT_NEAR(d.LogProb(logits[0]), want, 2e-6 * std::max(1.0, std::fabs(want))) << size;
    }
  }
}

TEST_P(TokenDistributionTest, GivesTheSameBitsWhereverTheRowLies) {
  const std::vector<float> logits = RandomLogits(700);
  const TokenDistribution want = DistributionOf(GetParam(), logits, 1);
  for (size_t offset = 1; offset < 16; ++offset) {
    std::vector<float> moved(offset);
    moved.insert(moved.end(), logits.begin(), logits.end());
    const TokenDistribution d =
        DistributionOf(GetParam(), std::span<const float>(moved).subspan(offset), 1);
    EXPECT_EQ(d.mass, want.mass);
    EXPECT_EQ(d.second, want.second);
  }
}

TEST_P(TokenDistributionTest, WithoutMomentsEverythingElseIsTheSameBits) {
  const std::vector<float> logits = RandomLogits(1300);
  std::vector<float> exps(1300), want_exps(1300);
  std::vector<double> blocks(3), want_blocks(3);
  const TokenDistribution d = MassOf(GetParam(), logits, 0.7f, exps.data(), blocks.data());
  const TokenDistribution want =
      DistributionOf(GetParam(), logits, 0.7f, want_exps.data(), want_blocks.data());
  EXPECT_EQ(d.mass, want.mass);
  EXPECT_EQ(d.LogProb(logits[7]), want.LogProb(logits[7]));
  EXPECT_EQ(exps, want_exps);
  EXPECT_EQ(blocks, want_blocks);
  EXPECT_EQ(d.first, 0);
  EXPECT_LT(want.first, 0);
}

TEST_P(TokenDistributionTest, OverAllIdsItIsTheSameDistribution) {
  const std::vector<float> logits = RandomLogits(600);
  std::vector<int32_t> ids(600);
  std::iota(ids.begin(), ids.end(), 0);
  const TokenDistribution all = DistributionOf(GetParam(), logits, 0.8f);
  const TokenDistribution over = DistributionOver(logits, ids, 0.8f, all.largest);
  EXPECT_NEAR(over.log_mass, all.log_mass, 1e-6);
  EXPECT_NEAR(over.entropy(), all.entropy(), 1e-5);
  // Half of two equal ids: log-prob -ln 2.
  const std::vector<float> pair = {1, 5, 1};
  const std::vector<int32_t> outer = {0, 2};
  EXPECT_FLOAT_EQ(DistributionOver(pair, outer, 1, 5).LogProb(1), -std::log(2.0f));
}

TEST_P(TokenDistributionTest, SaysWhenLogitsAreNoDistribution) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto broken = [](std::vector<float> logits) {
    return DistributionOf(GetParam(), logits, 1).broken();
  };
  EXPECT_FALSE(broken({1, -kInfinity, 2}));
  EXPECT_TRUE(broken({1, std::numeric_limits<float>::quiet_NaN(), 2}));
  EXPECT_TRUE(broken({1, kInfinity}));
  EXPECT_TRUE(broken({-kInfinity, -kInfinity}));
}

TEST_P(TokenDistributionTest, MachinesWithAndWithoutAvx512GiveTheSameBits) {
  if (GetParam() == InstructionSet::kScalar) return;  // has no fused multiply-add
  const std::vector<float> logits = RandomLogits(5000);
  const TokenDistribution d = DistributionOf(GetParam(), logits, 0.7f);
  const TokenDistribution want = DistributionOf(InstructionSet::kAvx2, logits, 0.7f);
  EXPECT_EQ(d.mass, want.mass);
  EXPECT_EQ(d.first, want.first);
  EXPECT_EQ(d.second, want.second);
}

INSTANTIATE_TEST_SUITE_P(Sets, TokenDistributionTest,
                         ::testing::ValuesIn(SupportedInstructionSets()), [](const auto& info) {
                           return std::string(InstructionSetName(info.param));
                         });

}  // namespace
}  // namespace tandem
