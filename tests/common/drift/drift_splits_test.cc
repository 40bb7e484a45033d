#include "common/drift/drift_splits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/common/drift/token_lines.h"

namespace tandem::offpolicy {
namespace {

std::vector<std::string> Labels(const std::vector<DriftBucket>& buckets) {
  std::vector<std::string> labels;
  for (const DriftBucket& bucket : buckets) labels.push_back(bucket.label);
  return labels;
}

// Two completions of 20 tokens; delta is 0 but for the first tokens (log 2) and the last (-log 2).
TokenLines TwoCompletions() {
  TokenLines tokens;
  for (int32_t s = 0; s < 2; ++s) {
    for (int t = 0; t < 20; ++t) {
      tokens.Add(0.4, t == 0 ? 0.8 : t == 19 ? 0.2 : 0.4, s == 0 ? 1.0f : -1.0f, s);
    }
  }
  return tokens;
}

TEST(DriftSplitsTest, FirstAndLastTokensStandAlone) {
  const auto buckets = BucketDrift(TwoCompletions().view(), SplitBy::kPlace);
  EXPECT_EQ(Labels(buckets), (std::vector<std::string>{"first", "between", "last"}));
  EXPECT_EQ(buckets[0].sums.tokens, 2);
  EXPECT_EQ(buckets[1].sums.tokens, 36);
  EXPECT_NEAR(buckets[0].mean_delta.value, std::log(2.0), 1e-6);
  EXPECT_NEAR(buckets[1].mean_abs_delta.value, 0, 1e-9);
  EXPECT_NEAR(buckets[2].mean_w.value, 0.5, 1e-6);
  EXPECT_FALSE(buckets[0].mean_delta.known()) << "two completions are too few for an interval";
}

TEST(DriftSplitsTest, TurnsStandAloneWhereThereAreSeveral) {
  TokenLines tokens;
  for (const double pi : {0.4, 0.4, 0.8, 0.2}) tokens.Add(0.4, pi);
  EXPECT_TRUE(BucketDrift(tokens.view(), SplitBy::kTurn).empty()) << "all of one turn";
  TokenRecord record = tokens.view();
  const std::vector<int32_t> turns = {1, 1, 2, 20};
  record.turn = turns;
  const auto buckets = BucketDrift(record, SplitBy::kTurn);
  EXPECT_EQ(Labels(buckets), (std::vector<std::string>{"1", "2", "17-32"}));
  EXPECT_EQ(buckets[0].sums.tokens, 2);
  EXPECT_NEAR(buckets[1].mean_delta.value, std::log(2.0), 1e-6);
  EXPECT_NEAR(buckets[2].mean_delta.value, -std::log(2.0), 1e-6);
}

TEST(DriftSplitsTest, PositionIsTheTenthOfTheCompletion) {
  const auto buckets = BucketDrift(TwoCompletions().view(), SplitBy::kPosition);
  ASSERT_EQ(buckets.size(), 10u);
  EXPECT_EQ(buckets[0].label, "0-10%");
  EXPECT_EQ(buckets[9].label, "90-100%");
  EXPECT_EQ(buckets[0].sums.tokens, 4);
  EXPECT_NEAR(buckets[9].mean_delta.value, -std::log(2.0) / 2, 1e-6);
}

TEST(DriftSplitsTest, LengthDoublesFromSixteen) {
  TokenLines tokens;
  const int lengths[] = {1, 15, 16, 31, 32, 64};
  for (int32_t s = 0; s < 6; ++s) {
    for (int t = 0; t < lengths[s]; ++t) tokens.Add(0.4, 0.4, 1, s);
  }
  const auto buckets = BucketDrift(tokens.view(), SplitBy::kLength);
  EXPECT_EQ(Labels(buckets), (std::vector<std::string>{"1-15", "16-31", "32-63", "64-127"}));
  EXPECT_EQ(buckets[0].sums.tokens, 16);
  EXPECT_EQ(buckets[1].sums.tokens, 47);
}

TEST(DriftSplitsTest, EntropyBandsAndVersionLagsHaveFixedBounds) {
  TokenLines tokens;
  for (int i = 0; i < 9; ++i) tokens.Add(0.4, 0.4);
  tokens.entropies = {0.001f, 0.02f, 0.2f, 0.5f, 1, 2, 4, 9, 0};
  tokens.version_lag = {0, 1, 2, 3, 4, 5, 8, 9, 16};
  EXPECT_EQ(
      Labels(BucketDrift(tokens.view(), SplitBy::kEntropy)),
      (std::vector<std::string>{"0-0.01", "0.01-0.1", "0.1-0.5", "0.5-1", "1-2", "2-4", "4-"}));
  const auto lags = BucketDrift(tokens.view(), SplitBy::kVersionLag);
  EXPECT_EQ(Labels(lags), (std::vector<std::string>{"0", "1", "2", "3-4", "5-8", "9-16"}));
  for (const DriftBucket& bucket : lags) {
    EXPECT_EQ(bucket.sums.tokens, bucket.label.size() > 1 ? 2 : 1) << bucket.label;
  }
}

TEST(DriftSplitsTest, TokensOfUnknownEntropyAreInNoBandOfIt) {
  TokenLines tokens;
  for (int i = 0; i < 2; ++i) tokens.Add(0.4, 0.4);
  tokens.entropies = {std::nanf(""), 0.2f};
  const auto buckets = BucketDrift(tokens.view(), SplitBy::kEntropy);
  ASSERT_EQ(Labels(buckets), std::vector<std::string>{"0.1-0.5"});
  EXPECT_EQ(buckets[0].sums.tokens, 1);
}

TEST(DriftSplitsTest, AdvantageSignsKeepMaskedTokensOut) {
  TokenLines tokens = TwoCompletions();
  tokens.advantages[5] = 0;
  tokens.mask[6] = 0;
  const auto buckets = BucketDrift(tokens.view(), SplitBy::kAdvantageSign);
  EXPECT_EQ(Labels(buckets), (std::vector<std::string>{"positive", "negative", "zero"}));
  EXPECT_EQ(buckets[0].sums.tokens, 18);
  EXPECT_EQ(buckets[1].sums.tokens, 20);
  EXPECT_EQ(buckets[2].sums.tokens, 1);
}

}  // namespace
}  // namespace tandem::offpolicy
