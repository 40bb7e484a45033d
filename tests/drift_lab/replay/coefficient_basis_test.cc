#include "drift_lab/replay/coefficient_basis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tandem::drift {
namespace {

using Rows = std::vector<std::vector<double>>;

CoefficientBasis Span(const Rows& rows) { return SpanOf({rows.begin(), rows.end()}); }

double Error(const Rows& rows, const CoefficientBasis& basis, size_t m) {
  double squares = 0;
  for (size_t t = 0; t < rows[m].size(); ++t) {
    double value = -rows[m][t];
    for (size_t r = 0; r < basis.directions.size(); ++r) {
      value += basis.weights[m][r] * basis.directions[r][t];
    }
    squares += value * value;
  }
  return std::sqrt(squares);
}

TEST(CoefficientBasisTest, WeightsOfWholeCompletionsShareOneDirection) {
  const Rows rows = {{3, 4}, {6, 8}, {0, 0}, {-0.3, -0.4}};
  const CoefficientBasis basis = Span(rows);
  ASSERT_EQ(basis.directions.size(), 1u);
  EXPECT_NEAR(basis.directions[0][0], 0.6, 1e-15);
  EXPECT_NEAR(basis.weights[0][0], 5, 1e-12);
  EXPECT_NEAR(basis.weights[1][0], 10, 1e-12);
  EXPECT_EQ(basis.weights[2][0], 0);
  EXPECT_NEAR(basis.weights[3][0], -0.5, 1e-12);
}

TEST(CoefficientBasisTest, NothingToSayOfRowsOfZeros) {
  const CoefficientBasis basis = Span({{0, 0, 0}, {0, 0, 0}});
  EXPECT_TRUE(basis.directions.empty());
  ASSERT_EQ(basis.weights.size(), 2u);
  EXPECT_TRUE(basis.weights[1].empty());
}

TEST(CoefficientBasisTest, RowsOfAnySizeAreDescribedWithinTheToleranceByOrthonormalDirections) {
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  Rows rows(9, std::vector<double>(5));
  for (size_t m = 0; m < rows.size(); ++m) {
    for (double& value : rows[m])
      value = std::pow(10.0, static_cast<double>(m) - 4) * normal(random);
  }
  const CoefficientBasis basis = Span(rows);
  ASSERT_EQ(basis.directions.size(), 5u);  // of 5 tokens, however many rows
  for (size_t m = 0; m < rows.size(); ++m) {
    EXPECT_LT(Error(rows, basis, m), 1e-4 * std::pow(10.0, static_cast<double>(m) - 4)) << m;
  }
  for (size_t a = 0; a < 5; ++a) {
    for (size_t b = 0; b < 5; ++b) {
      double dot = 0;
      for (size_t t = 0; t < 5; ++t) dot += basis.directions[a][t] * basis.directions[b][t];
      EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-12);
    }
  }
}

TEST(CoefficientBasisTest, ADifferenceBelowTheToleranceIsNotADirection) {
  EXPECT_EQ(Span({{1, 1}, {1, 1 + 1e-6}}).directions.size(), 1u);
  EXPECT_EQ(Span({{1, 1}, {1, 1 + 1e-4}}).directions.size(), 2u);
}

}  // namespace
}  // namespace tandem::drift
