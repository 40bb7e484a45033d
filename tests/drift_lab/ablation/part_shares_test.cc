#include "drift_lab/ablation/part_shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/common/drift/token_lines.h"

namespace tandem::drift {
namespace {

// Twelve completions of ten tokens, whose parts are given per token.
struct Gap : offpolicy::TokenLines {
  TokenParts parts{{Part::kRecord, Part::kCast, Part::kStaleness}, {{}, {}, {}}};

  template <typename Values>
  explicit Gap(const Values& values) {
    for (int32_t s = 0; s < 12; ++s) {
      for (int t = 0; t < 10; ++t) {
        Add(0.5, 0.5, 1, s);
        const auto of_token = values(s, t);
        for (size_t i = 0; i < 3; ++i) parts.values[i].push_back(of_token[i]);
      }
    }
  }
};

TEST(PartSharesTest, ConstantPartsHaveSharesInProportion) {
  const Gap gap([](int, int) { return std::array{0.01, -0.02, 0.05}; });  // delta 0.04
  const PartShares shares = ComputePartShares(gap.view(), gap.parts);
  EXPECT_EQ(shares.num_tokens, 120);
  EXPECT_NEAR(shares.total_mean.value, 0.04, 1e-12);
  // Squares of 0.01, -0.01, 0.04 from the engine's end, of 0.04, 0.03, 0.05 from the trainer's, all
  // over 0.04 squared: increments 1/16, 0, 15/16 and 7/16, -1, 25/16.
  EXPECT_NEAR(shares.parts[0].square().value, 4.0 / 16, 1e-12);
  EXPECT_NEAR(shares.parts[1].square().value, -8.0 / 16, 1e-12);
  EXPECT_NEAR(shares.parts[2].square().value, 20.0 / 16, 1e-12);
  EXPECT_NEAR(shares.parts[1].shares[kSquare].first, 0, 1e-12);
  EXPECT_NEAR(shares.parts[1].shares[kSquare].last, -1, 1e-12);
  EXPECT_NEAR(shares.parts[1].mean_abs.value, 0.02, 1e-12);
  EXPECT_NEAR(shares.parts[1].mean.value, -0.02, 1e-12);
}

TEST(PartSharesTest, EveryKindOfShareAddsUpToOne) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  const Gap gap([&](int, int) {
    return std::array{0.1 * normal(random), 0.05 * normal(random), 0.02 * normal(random)};
  });
  const PartShares shares = ComputePartShares(gap.view(), gap.parts);
  double mean = 0, square = 0, k3 = 0, tail = 0;
  for (const PartShare& share : shares.parts) {
    mean += share.mean.value;
    square += share.square().value;
    k3 += share.shares[kK3].share.value;
    tail += share.shares[kTail].share.value;
    EXPECT_NEAR((share.shares[kK3].first + share.shares[kK3].last) / 2,
                share.shares[kK3].share.value, 1e-12);
  }
  EXPECT_NEAR(mean, shares.total_mean.value, 1e-12);
  EXPECT_NEAR(square, 1, 1e-9);
  EXPECT_NEAR(k3, 1, 1e-9);
  EXPECT_NEAR(tail, 1, 1e-9);
  // Variances 100 : 25 : 4.
  EXPECT_TRUE(shares.parts[0].square().low < 100.0 / 129 &&
              shares.parts[0].square().high > 100.0 / 129);
  EXPECT_TRUE(shares.parts[2].square().low < 4.0 / 129 &&
              shares.parts[2].square().high > 4.0 / 129);
}

// Two steps of log 2 in one direction: k3 of the whole is more than twice that of a half, so the
// first step is worth less than the last.
TEST(PartSharesTest, BoundsOfOrderAreApartWhereTheMeasureIsNotAdditive) {
  const double step = std::log(2.0);
  const Gap gap([&](int, int) { return std::array{step, 0.0, step}; });
  const PartShares shares = ComputePartShares(gap.view(), gap.parts);
  const double half = 1 - step, whole = 3 - 2 * step;
  EXPECT_NEAR(shares.parts[0].shares[kK3].first, half / whole, 1e-12);
  EXPECT_NEAR(shares.parts[0].shares[kK3].last, (whole - half) / whole, 1e-12);
  EXPECT_NEAR(shares.parts[0].shares[kK3].share.value, 0.5, 1e-12);
  EXPECT_NEAR(shares.parts[1].shares[kK3].share.value, 0, 1e-12);
}

TEST(PartSharesTest, LeavesOutTokensThatSomeStepLacksAndCountsThem) {
  Gap gap([](int, int) { return std::array{0.01, 0.0, 0.0}; });
  gap.parts.values[1][7] = std::numeric_limits<double>::quiet_NaN();
  gap.mask[8] = 0;
  const PartShares shares = ComputePartShares(gap.view(), gap.parts);
  EXPECT_EQ(shares.num_tokens, 118);
  EXPECT_EQ(shares.num_missing, 1);
}

TEST(PartSharesTest, NoGapHasNoShares) {
  const Gap gap([](int, int) { return std::array{0.0, 0.0, 0.0}; });
  const PartShares shares = ComputePartShares(gap.view(), gap.parts);
  EXPECT_EQ(shares.totals[kK3].value, 0);
  EXPECT_EQ(shares.total_mean_abs.high, 0);
  EXPECT_TRUE(std::isnan(shares.parts[0].square().value));
}

// Two factors a and b, each with a rounding error of size 1 that is drawn anew when the other
// changes: with both, the error is of size sqrt 2 and has nothing to do with that of either alone.
TEST(PartSharesTest, FactorsThatDrawEachOthersErrorsAnewAreSharedByTheCellsNotByTheTokens) {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  offpolicy::TokenLines tokens;
  TokenParts parts{.parts = {Part::kRecord, Part::kBody, Part::kKv, Part::kKernels},
                   .values = std::vector<std::vector<double>>(4),
                   .first_factor = 1,
                   .num_factors = 2,
                   .cells = std::vector<std::vector<double>>(4)};
  constexpr double kUnit = 1e-3;
  for (int32_t s = 0; s < 40; ++s) {
    for (int t = 0; t < 50; ++t) {
      tokens.Add(0.5, 0.5, 1, s);
      // a is twice as large as b: squares 4 and 1, together 5.
      const double a = 2 * kUnit * normal(random), b = kUnit * normal(random);
      const double both = std::sqrt(5.0) * kUnit * normal(random);
      const double cells[] = {0, a, b, both};
      for (int c = 0; c < 4; ++c) parts.cells[c].push_back(cells[c]);
      parts.values[0].push_back(0);
      parts.values[1].push_back((a + both - b) / 2);
      parts.values[2].push_back((b + both - a) / 2);
      parts.values[3].push_back(0);
    }
  }
  const PartShares shares = ComputePartShares(tokens.view(), parts);
  EXPECT_NEAR(shares.parts[1].square().value, 0.8, 0.05);
  EXPECT_NEAR(shares.parts[2].square().value, 0.2, 0.05);
  EXPECT_TRUE(shares.parts[1].square().low < 0.8 && shares.parts[1].square().high > 0.8);
  EXPECT_NEAR(shares.parts[1].square().value + shares.parts[2].square().value, 1, 1e-9);
  EXPECT_NEAR(shares.parts[1].mean_abs.value, 2 * kUnit * 0.798, 1e-4);
  EXPECT_EQ(shares.parts[3].square().value, 0);
}

}  // namespace
}  // namespace tandem::drift
