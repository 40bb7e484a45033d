#include "drift_lab/referee/column_transforms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::drift {
namespace {

const std::vector<double> kOwnLogprobs = {-1, -2, -4}, kModelLogprobs = {-3, -5, -6};
const std::vector<int64_t> kRowOf = {0, 0, 1};
const TokenSet kTokenSet = {
    .row = {0, 0, 1}, .scale = {0.1, 0.2, 0.4}, .rounding = {0.01, 0.02, 0.04}};

ColumnTransform Of(const std::string& text, double temperature = 1) {
  for (ColumnTransform& transform :
       ColumnTransforms(kOwnLogprobs, kModelLogprobs, kRowOf, kTokenSet, temperature)) {
    if (std::string(transform.text).find(text) != std::string::npos) return transform;
  }
  ADD_FAILURE() << "no " << text;
  return {};
}

TEST(ColumnTransformsTest, AnotherBaseScalesValuesAndTheirNoise) {
  const ColumnTransform base2 = Of("base 2");
  EXPECT_DOUBLE_EQ(base2.values[1], -2 / std::log(2.0));
  EXPECT_DOUBLE_EQ(base2.tokens.scale[1], 0.2 / std::log(2.0));
  EXPECT_DOUBLE_EQ(base2.tokens.rounding[1], 0.02 / std::log(2.0));
}

TEST(ColumnTransformsTest, TheNoiseOfAProbabilityIsThatOfItsLogTimesTheProbability) {
  const ColumnTransform shares = Of("probabilities in place");
  EXPECT_DOUBLE_EQ(shares.values[2], std::exp(-4.0));
  EXPECT_DOUBLE_EQ(shares.tokens.scale[2], 0.4 * std::exp(-4.0));
}

TEST(ColumnTransformsTest, ATemperatureDividesTheModelsLogProbsWhereOneIsClaimed) {
  EXPECT_DOUBLE_EQ(Of("divided by the temperature", 0.5).values[0], -6);
  EXPECT_EQ(ColumnTransforms(kOwnLogprobs, kModelLogprobs, kRowOf, kTokenSet, 1).size() + 1,
            ColumnTransforms(kOwnLogprobs, kModelLogprobs, kRowOf, kTokenSet, 0.5).size());
}

TEST(ColumnTransformsTest, AShiftTakesItsNoiseAlongAndStopsAtTheEndsOfRows) {
  const ColumnTransform after = Of("the token after"), before = Of("the token before");
  EXPECT_EQ(after.values[0], -2);
  EXPECT_EQ(after.tokens.scale[0], 0.2);
  EXPECT_TRUE(std::isnan(after.values[1])) << "the next token is of another row";
  EXPECT_TRUE(std::isnan(after.values[2]));
  EXPECT_TRUE(std::isnan(before.values[0]));
  EXPECT_EQ(before.values[1], -1);
  EXPECT_EQ(before.tokens.rounding[1], 0.01);
}

}  // namespace
}  // namespace tandem::drift
