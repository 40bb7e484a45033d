#include "trainer/preferences/overoptimisation_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using Numbers = std::vector<double>;
using Law = OveroptimisationLaw;

// d = 0, 1, 2, 3, 4.
const Numbers kKl = {0, 1, 4, 9, 16};

TEST(FitOveroptimisation, FindsTheParametersOfEitherLaw) {
  for (const Law law : {Law::kBestOfN, Law::kReinforcement}) {
    Numbers rewards;
    for (const double kl : kKl) rewards.push_back(GoldReward(law, 1.5, 0.25, std::sqrt(kl)));
    const auto fit = FitOveroptimisation(law, kKl, rewards);
    ASSERT_THAT(fit, IsOk());
    EXPECT_NEAR(fit->alpha, 1.5, 1e-9);
    EXPECT_NEAR(fit->beta, 0.25, 1e-9);
    EXPECT_NEAR(fit->residual_squares, 0, 1e-12);
    EXPECT_NEAR(fit->peak_distance, law == Law::kBestOfN ? 3 : std::exp(5.0), 1e-6);
    const auto both = CompareOveroptimisation(kKl, rewards);
    ASSERT_THAT(both, IsOk());
    EXPECT_EQ(both->better, law);
  }
}

TEST(FitOveroptimisation, IsLeastSquaresWithItsStandardErrors) {
  // Best of n at d = 1, 1, 2: columns x = (1, 1, 2), y = (-1, -1, -4), rewards (0, 2, 2).
  // X'X = [[6, -10], [-10, 18]], determinant 8; X'r = (6, -10). alpha = (18 6 - 10 10) / 8 = 1,
  // beta = (6 (-10) + 10 6) / 8 = 0. Residuals -1, 1, 0: variance 2 / (3 - 2).
  const auto fit = FitOveroptimisation(Law::kBestOfN, Numbers{1, 1, 4}, Numbers{0, 2, 2});
  ASSERT_THAT(fit, IsOk());
  EXPECT_NEAR(fit->alpha, 1, 1e-12);
  EXPECT_NEAR(fit->beta, 0, 1e-12);
  EXPECT_NEAR(fit->residual_squares, 2, 1e-12);
  EXPECT_NEAR(fit->alpha_error, std::sqrt(2 * 18.0 / 8), 1e-12);
  EXPECT_NEAR(fit->beta_error, std::sqrt(2 * 6.0 / 8), 1e-12);
}

TEST(FitOveroptimisation, HasNoPeakWhereTheRewardOnlyRises) {
  const auto fit = FitOveroptimisation(Law::kBestOfN, kKl, Numbers{0, 1.1, 2.4, 3.9, 5.6});
  ASSERT_THAT(fit, IsOk());
  EXPECT_LT(fit->beta, 0);
  EXPECT_TRUE(std::isinf(fit->peak_distance));
}

TEST(FitOveroptimisation, PeaksAtTheStartWhereTheRewardOnlyFalls) {
  const auto fit = FitOveroptimisation(Law::kBestOfN, kKl, Numbers{0, -1.1, -2.4, -3.9, -5.6});
  ASSERT_THAT(fit, IsOk());
  EXPECT_GT(fit->beta, 0);
  EXPECT_EQ(fit->peak_distance, 0);
}

TEST(FitOveroptimisation, RefusesWhatCannotBeFitted) {
  const auto refused = [](const Numbers& kl, const Numbers& rewards, const char* message) {
    EXPECT_THAT(FitOveroptimisation(Law::kReinforcement, kl, rewards),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
    EXPECT_THAT(CompareOveroptimisation(kl, rewards).status(),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  refused({1, 4}, {1, 2}, "at least 3 points");
  refused({1, 4, 9}, {1, 2}, "3 KLs and 2 rewards");
  refused({1, -4, 9}, {1, 2, 3}, "point 1 has the KL -4");
  refused({1, 4, 9}, {1, 2, std::numeric_limits<double>::quiet_NaN()}, "point 2 has the KL 9");
  refused({0, 4, 4}, {0, 2, 3}, "fewer than 2 different KLs above 0");
  refused({0, 0, 0}, {0, 2, 3}, "fewer than 2 different KLs above 0");
}

TEST(BestOfNKl, IsThatOfTheLargestOfN) {
  EXPECT_EQ(BestOfNKl(1), 0);
  EXPECT_NEAR(BestOfNKl(4), std::log(4.0) - 0.75, 1e-12);
}

}  // namespace
}  // namespace tandem::trainer
