#include "drift_lab/hypotheses/record_hypothesis.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::drift {
namespace {

TEST(RecordHypothesisTest, TransformsAreThoseClaimedMadeTighterNeverLooser) {
  rollout::ScoreOptions claims;
  claims.temperature = 0.5f;
  claims.top_p = 0.9f;
  claims.top_k = 40;
  RecordHypothesis hypothesis;
  hypothesis.temperature = 0.8;
  hypothesis.top_p = 0.95;
  hypothesis.top_k = 20;
  hypothesis.min_p = 0.1;
  hypothesis.precision.kv_bits = 8;
  const rollout::ScoreOptions options = hypothesis.Transforms(claims);
  EXPECT_FLOAT_EQ(options.temperature, 0.4f);
  EXPECT_FLOAT_EQ(options.top_p, 0.9f);
  EXPECT_EQ(options.top_k, 20);
  EXPECT_FLOAT_EQ(options.min_p, 0.1f);
  EXPECT_EQ(options.arithmetic.precision.kv_bits, 8);
  EXPECT_EQ(RecordHypothesis().Transforms(claims).top_k, 40);
}

TEST(RecordHypothesisTest, EveryParameterIsSetAndClearedByItself) {
  RecordHypothesis all;
  all.temperature = 0.9;
  all.top_p = 0.9;
  all.top_k = 5;
  all.min_p = 0.1;
  all.first_id = 3;
  all.precision = {7, 8, 9, 10};
  all.kv_quantisation = {8, 4};
  all.weights = OtherWeights{.versions_before = 2};
  all.stale_prefix = 1;
  all.stale_rows = {true, false};
  const Part parts[] = {Part::kTemperature, Part::kTopP,        Part::kTopK,
                        Part::kMinP,        Part::kFirstId,     Part::kBodyBits,
                        Part::kHeadBits,    Part::kKvBits,      Part::kRotaryBits,
                        Part::kTensor,      Part::kStalePrefix, Part::kKvQuantisation};
  RecordHypothesis adopted, cleared = all;
  for (const Part part : parts) {
    EXPECT_FALSE(adopted.Has(part)) << PartName(part);
    adopted.Adopt(part, all);
    EXPECT_TRUE(adopted.Has(part)) << PartName(part);
    cleared.Clear(part);
    EXPECT_FALSE(cleared.Has(part)) << PartName(part);
  }
  EXPECT_TRUE(adopted == all);
  EXPECT_TRUE(cleared == RecordHypothesis());
}

TEST(RecordHypothesisTest, ShiftedRowsShowTheTokenBesideAndNothingAtTheEdge) {
  const std::vector<float> shifted = ShiftRows({-1, -2, -3, -4, -5}, {1, -1}, {0, 3, 5});
  EXPECT_TRUE(std::isnan(shifted[0]));
  EXPECT_EQ(shifted[1], -1);
  EXPECT_EQ(shifted[2], -2);
  EXPECT_EQ(shifted[3], -5);
  EXPECT_TRUE(std::isnan(shifted[4]));
}

}  // namespace
}  // namespace tandem::drift
