#include "trainer/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;

std::vector<size_t> Sources(Mixture mixture, int64_t count) {
  std::vector<size_t> sources;
  for (int64_t place = 0; place < count; ++place) sources.push_back(mixture.At(place).source);
  return sources;
}

// By hand: credits (2, 1) take 0 and leave (-1, 1); (1, 2) take 1 and leave (1, -1); (3, 0) take 0
// and leave (0, 0).
TEST(Mixture, TakesTurnsByCredit) {
  EXPECT_THAT(Sources(Mixture({2, 1}), 6), ElementsAre(0, 1, 0, 0, 1, 0));
  EXPECT_THAT(Sources(Mixture({1, 1}), 4), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(Sources(Mixture({5}), 3), ElementsAre(0, 0, 0));
}

TEST(Mixture, EverySourceHasItsShareAtEveryPlaceOffByLessThanOne) {
  const std::vector<double> weights = {0.7, 0.2, 0.0625, 0.0375};
  Mixture mixture(weights);
  std::vector<int64_t> counts(weights.size(), 0);
  for (int64_t place = 0; place < 20000; ++place) {
    const Mixture::Draw draw = mixture.At(place);
    EXPECT_EQ(draw.count, counts[draw.source]++);
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_LT(
          std::abs(static_cast<double>(counts[i]) - weights[i] * static_cast<double>(place + 1)),
          1.0);
    }
  }
}

TEST(Mixture, IsAFunctionOfThePlaceAlone) {
  Mixture forward({3, 2, 1});
  std::vector<Mixture::Draw> draws;
  for (int64_t place = 0; place < 100; ++place) draws.push_back(forward.At(place));
  Mixture resumed({3, 2, 1});
  for (const int64_t place : {73, 73, 5, 99, 0, 42}) {
    const Mixture::Draw draw = resumed.At(place);
    EXPECT_EQ(draw.source, draws[static_cast<size_t>(place)].source);
    EXPECT_EQ(draw.count, draws[static_cast<size_t>(place)].count);
  }
}

TEST(Mixture, OnlyTheRatioOfWeightsCounts) {
  EXPECT_EQ(Sources(Mixture({0.3, 0.1}), 50), Sources(Mixture({3, 1}), 50));
  EXPECT_EQ(Mixture({1, 3}).units(), (std::vector<int64_t>{250000000, 750000000}));
}

}  // namespace
}  // namespace tandem::trainer
