#include "drift_lab/ablation/token_parts.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <span>
#include <vector>

namespace tandem::drift {
namespace {

struct Share {
  double share = 0, alone = 0, last = 0;
};

double Weigh(const std::vector<double>& weights, std::span<const double> values) {
  return std::inner_product(weights.begin(), weights.end(), values.begin(), 0.0);
}

std::vector<Share> ShapleyShares(std::span<const double> values) {
  const int k = std::countr_zero(values.size());
  std::vector<Share> shares;
  for (int i = 0; i < k; ++i) {
    shares.push_back({Weigh(ShapleyWeights(k, i), values), Weigh(AloneWeights(k, i), values),
                      Weigh(LastWeights(k, i), values)});
  }
  return shares;
}

// Factors a, b, c; cells in binary order: none, a, b, ab, c, ac, bc, abc.
TEST(ShapleyTest, FactorsWithoutInteractionKeepWhatTheyAddAlone) {
  const double values[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto shares = ShapleyShares(values);
  ASSERT_EQ(shares.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(shares[i].share, 1 << i);
    EXPECT_DOUBLE_EQ(shares[i].alone, 1 << i);
    EXPECT_DOUBLE_EQ(shares[i].last, 1 << i);
  }
}

TEST(ShapleyTest, AnInteractionIsSharedEquallyAndItsBoundsAreApart) {
  const double values[] = {0, 1, 1, 6};  // together 4 more than apart
  const auto shares = ShapleyShares(values);
  EXPECT_DOUBLE_EQ(shares[0].share, 3);
  EXPECT_DOUBLE_EQ(shares[0].alone, 1);
  EXPECT_DOUBLE_EQ(shares[0].last, 5);
}

// The glove game: c has a left glove, a and b a right one each; a pair is worth 1. Known: 1/6, 1/6,
// 2/3.
TEST(ShapleyTest, SolvesTheGloveGame) {
  const double values[] = {0, 0, 0, 0, 0, 1, 1, 1};
  const auto shares = ShapleyShares(values);
  EXPECT_NEAR(shares[0].share, 1.0 / 6, 1e-12);
  EXPECT_NEAR(shares[1].share, 1.0 / 6, 1e-12);
  EXPECT_NEAR(shares[2].share, 2.0 / 3, 1e-12);
}

TEST(ShapleyTest, SharesOfSixFactorsAddUpToTheWhole) {
  std::vector<double> values(64);
  for (size_t cell = 0; cell < 64; ++cell)
    values[cell] = static_cast<double>((cell * 37 + 11) % 101);
  double sum = 0;
  for (const Share& share : ShapleyShares(values)) sum += share.share;
  EXPECT_NEAR(sum, values[63] - values[0], 1e-9);
  const auto weights = ShapleyWeights(6, 4);
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 0, 1e-12);
}

}  // namespace
}  // namespace tandem::drift
