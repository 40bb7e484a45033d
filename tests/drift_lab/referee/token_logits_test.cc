#include "drift_lab/referee/forward/token_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace tandem::drift {
namespace {

std::vector<float> SomeLogits(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(5000);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

double LogSoftmaxAt(std::vector<double> logits, size_t at) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - most);
  return logits[at] - most - std::log(sum);
}

class TokenLogitsTest : public ::testing::TestWithParam<int32_t> {
 protected:
  const std::vector<float> logits_ = SomeLogits(7);
  // The id of the token with the rank that the parameter says.
  int32_t Token() const {
    std::vector<int32_t> order(logits_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits_[static_cast<size_t>(a)] > logits_[static_cast<size_t>(b)];
    });
    return order[static_cast<size_t>(GetParam())];
  }
  std::vector<double> Doubles() const { return {logits_.begin(), logits_.end()}; }
};

TEST_P(TokenLogitsTest, ATemperatureGivesWhatAllLogitsGive) {
  const TokenLogits reduced = ReduceLogits(logits_, Token(), {});
  for (const double temperature : {0.5, 0.7, 1.0, 1.3}) {
    std::vector<double> heated = Doubles();
    for (double& logit : heated) logit /= temperature;
    EXPECT_NEAR(ScoreToken(reduced, {.temperature = temperature}).logprob,
                LogSoftmaxAt(heated, static_cast<size_t>(Token())), 2e-4)
        << temperature;
  }
}

TEST_P(TokenLogitsTest, ARepetitionPenaltyActsOnTheTokensOfTheContext) {
  TokenLogits reduced = ReduceLogits(logits_, Token(), {});
  std::vector<double> expected = Doubles();
  for (int32_t id = 0; id < 5000; id += 50) {
    reduced.seen.push_back({id, logits_[static_cast<size_t>(id)], 1, 0});
    double& logit = expected[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / 1.2 : logit * 1.2;
  }
  EXPECT_NEAR(ScoreToken(reduced, {.repetition_penalty = 1.2}).logprob,
              LogSoftmaxAt(expected, static_cast<size_t>(Token())), 2e-4);
}

TEST_P(TokenLogitsTest, TopKKeepsTheMostProbableTokens) {
  const TokenLogits reduced = ReduceLogits(logits_, Token(), {});
  const TokenScore score = ScoreToken(reduced, {.top_k = 20});
  if (GetParam() >= 20) {
    EXPECT_EQ(score.logprob, -std::numeric_limits<double>::infinity());
    return;
  }
  std::vector<double> kept = Doubles();
  const double own = kept[static_cast<size_t>(Token())];
  std::sort(kept.begin(), kept.end(), std::greater<>());
  kept.resize(20);
  const size_t at = static_cast<size_t>(std::find(kept.begin(), kept.end(), own) - kept.begin());
  EXPECT_NEAR(score.logprob, LogSoftmaxAt(kept, at), 1e-6);
}

TEST_P(TokenLogitsTest, TypicalPKeepsTheTokensWhoseSurpriseIsNearestToTheEntropy) {
  const TokenLogits reduced = ReduceLogits(logits_, Token(), {});
  std::vector<double> all = Doubles();
  const size_t token = static_cast<size_t>(Token());
  std::vector<double> surprise;
  double entropy = 0;
  for (size_t id = 0; id < all.size(); ++id) {
    surprise.push_back(-LogSoftmaxAt(all, id));
    entropy += std::exp(-surprise.back()) * surprise.back();
  }
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t id) { return std::abs(surprise[id] - entropy); });
  double mass = 0;
  std::vector<double> kept;
  std::optional<size_t> at;
  for (const size_t id : order) {
    if (mass >= 0.6) break;
    mass += std::exp(-surprise[id]);
    if (id == token) at = kept.size();
    kept.push_back(all[id]);
  }
  const double logprob = ScoreToken(reduced, {.typical_p = 0.6}).logprob;
  if (at.has_value()) {
    EXPECT_NEAR(logprob, LogSoftmaxAt(kept, *at), 2e-3);
  } else {
    EXPECT_EQ(logprob, -std::numeric_limits<double>::infinity());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TokenLogitsTest, ::testing::Values(0, 3, 19, 20, 400, 4000));

TEST(TokenLogitsBansTest, AnEndTokenIsBannedBeforeMinTokens) {
  const std::vector<float> logits = SomeLogits(8);
  const std::vector<int32_t> ends = {17};
  TokenLogits reduced = ReduceLogits(logits, 17, ends);
  reduced.place = 3;
  EXPECT_EQ(ScoreToken(reduced, {.min_tokens = 4}).logprob,
            -std::numeric_limits<double>::infinity());
  EXPECT_GT(ScoreToken(reduced, {.min_tokens = 3}).logprob, -60);
}

}  // namespace
}  // namespace tandem::drift
