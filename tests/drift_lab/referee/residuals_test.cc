#include "drift_lab/referee/residuals.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace tandem::drift {
namespace {

TEST(NoiseCurveTest, TokensWithoutARoundingDoNotCountAsTokensWithoutNoise) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> logprobs, rounding;
  for (int i = 0; i < 300; ++i) {
    logprobs.push_back(-0.01 * i);
    rounding.push_back(i % 3 == 0 ? (i % 2 == 0 ? 0.2 : -0.2) : none);
  }
  const NoiseCurve curve(logprobs, rounding);
  EXPECT_NEAR(curve.At(-1.5), 0.2, 1e-4);
  EXPECT_NEAR(curve.At(-50), 0.2, 1e-4) << "below all log-probs it is that of the lowest";
}

// Residuals of one scale, +-1, and `far` of them of `size`.
ResidualSize SizeWith(int far, double size) {
  constexpr int kTokens = 700;
  TokenSet tokens{.row = std::vector<int64_t>(kTokens),
                  .scale = std::vector<double>(kTokens, 0.1),
                  .rounding = std::vector<double>(kTokens, 0.1)};
  std::vector<double> residual;
  for (int i = 0; i < kTokens; ++i) {
    residual.push_back(i < far ? size : i % 2 == 0 ? 0.1 : -0.1);
  }
  return SizeOf(residual, tokens);
}

TEST(SizeOfTest, OneTokenFarAwayDoesNotDecideWhatRoundingIs) {
  const ResidualSize size = SizeWith(1, 2.5);
  EXPECT_NEAR(size.in_scale * size.in_scale, (699 + 625) / 700.0, 1e-9);
  EXPECT_NEAR(size.bounded * size.bounded, (699 + 100) / 700.0, 1e-9);
  EXPECT_EQ(size.num_extreme, 1);
  EXPECT_TRUE(size.as_rounding());
}

TEST(SizeOfTest, TwoTokensFarAwayOfSevenHundredAreMoreThanRounding) {
  const ResidualSize size = SizeWith(2, 1.5);
  EXPECT_LT(size.bounded, kMostRounding);
  EXPECT_LT(size.tail, kMostTail);
  EXPECT_FALSE(size.as_rounding());
}

}  // namespace
}  // namespace tandem::drift
