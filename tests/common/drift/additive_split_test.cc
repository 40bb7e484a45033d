#include "common/drift/additive_split.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/common/drift/token_lines.h"

namespace tandem::offpolicy {
namespace {

// Ten completions of three tokens with the same four parts each, and the scores between them.
struct FourParts : TokenLines {
  std::vector<float> engine, cast, masters;

  FourParts(float record_part, float engine_part, float cast_part, float staleness_part) {
    for (int32_t s = 0; s < 10; ++s) {
      for (int t = 0; t < 3; ++t) {
        Add(0.5, 0.5, 1, s);
        engine.push_back(behaviour.back() + record_part);
        cast.push_back(engine.back() + engine_part);
        masters.push_back(cast.back() + cast_part);
        proximal.back() = masters.back() + staleness_part;
      }
    }
  }
  SplitScores scores() const { return {engine, cast, masters}; }
};

TEST(AdditiveSplitTest, NamesTheOwnerOfEachPart) {
  const FourParts parts(0.125f, -0.25f, 0.5f, 1.0f);
  const AdditiveSplit split = ComputeAdditiveSplit(parts.view(), parts.scores());
  EXPECT_EQ(split.num_tokens, 30);
  const double expected[] = {0.125, -0.25, 0.5, 1.0};
  for (int i = 0; i < kNumSplitParts; ++i) {
    EXPECT_NEAR(split.parts[i].mean.value, expected[i], 1e-6) << i;
    EXPECT_NEAR(split.parts[i].mean_abs.value, std::abs(expected[i]), 1e-6) << i;
    EXPECT_NEAR(split.parts[i].square_share.value, expected[i] / 1.375, 1e-6) << i;
    EXPECT_NEAR(split.parts[i].mean.high - split.parts[i].mean.low, 0, 1e-6) << i;
  }
}

TEST(AdditiveSplitTest, PartsOfEveryTokenAddUpInFp64) {
  FourParts parts(0, 0, 0, 0);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> logprob(-30, 0);
  for (auto* scores :
       {&parts.behaviour, &parts.engine, &parts.cast, &parts.masters, &parts.proximal}) {
    for (float& value : *scores) value = logprob(random);
  }
  for (size_t t = 0; t < parts.engine.size(); ++t) {
    double sum = 0;
    for (const double part : SplitToken(parts.view(), parts.scores(), t)) sum += part;
    EXPECT_NEAR(sum, parts.view().Delta(t), 1e-12);
  }
  const AdditiveSplit split = ComputeAdditiveSplit(parts.view(), parts.scores());
  double means = 0, shares = 0, delta = 0;
  for (const SplitPartNumbers& part : split.parts) {
    means += part.mean.value;
    shares += part.square_share.value;
  }
  for (size_t t = 0; t < parts.engine.size(); ++t) delta += parts.view().Delta(t) / 30;
  EXPECT_NEAR(means, delta, 1e-12);
  EXPECT_NEAR(shares, 1, 1e-12);
}

TEST(AdditiveSplitTest, CountsTokensThatSomeScorerCouldNotScore) {
  FourParts parts(0.1f, 0, 0, 0);
  parts.masters[4] = std::numeric_limits<float>::quiet_NaN();
  parts.mask[5] = 0;
  parts.engine[5] = std::numeric_limits<float>::quiet_NaN();
  const AdditiveSplit split = ComputeAdditiveSplit(parts.view(), parts.scores());
  EXPECT_EQ(split.num_tokens, 28);
  EXPECT_EQ(split.num_missing, 1);
}

TEST(AdditiveSplitTest, OfEqualScorersIsZeroAndHasNoShares) {
  const FourParts parts(0, 0, 0, 0);
  const AdditiveSplit split = ComputeAdditiveSplit(parts.view(), parts.scores());
  for (const SplitPartNumbers& part : split.parts) {
    EXPECT_EQ(part.mean.value, 0);
    EXPECT_EQ(part.mean_abs.high, 0);
    EXPECT_TRUE(std::isnan(part.square_share.value));
  }
}

}  // namespace
}  // namespace tandem::offpolicy
