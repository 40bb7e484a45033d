// The faults of the sampler on rows of logits whose distributions are known in closed form.
#include "rollout_server/faults/faulty_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "rollout_server/engine/sampling/philox.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using tandem::testing::IsOk;

// p = .4 .3 .2 .1, in another order.
std::vector<float> Row() {
  return {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.3f)};
}

SampledToken Draw(const EngineFaults& faults, double uniform, const SamplingParams& params = {},
                  const std::vector<int32_t>& forbidden = {}) {
  const auto token = FaultySample(Row(), params, forbidden, uniform, faults, {7, 0, 0});
  EXPECT_THAT(token, IsOk());
  return token.ok() ? *token : SampledToken();
}

TEST(FaultySampling, AnUndisclosedTemperatureHasSlopeTMinusOne) {
  const std::vector<float> row = Row();
  EngineFaults faults;
  faults.temperature = 0.8;
  for (const float claimed : {1.0f, 0.7f}) {
    const SamplingParams params = {.temperature = claimed};
    std::vector<double> deltas, logprobs;
    for (int i = 0; i < 200; ++i) {
      const SampledToken token = Draw(faults, (i + 0.5) / 200, params);
      const double claimed_logprob = LogSoftmaxAt(row, claimed, token.id);
      deltas.push_back(claimed_logprob - token.behaviour_logprob);
      logprobs.push_back(token.behaviour_logprob);
      EXPECT_NEAR(token.raw_logprob, row[token.id], 1e-6);
    }
    // Linear in log mu with slope T - 1, whichever two tokens are compared.
    for (size_t i = 1; i < deltas.size(); ++i) {
      if (std::abs(logprobs[i] - logprobs[0]) < 1e-6) continue;
      EXPECT_NEAR((deltas[i] - deltas[0]) / (logprobs[i] - logprobs[0]), 0.8 - 1, 1e-5);
    }
  }
}

TEST(FaultySampling, ARecordOfTheClaimKeepsDeltaAtZeroAndTheCalibrationTestFindsIt) {
  const std::vector<float> row = Row();
  EngineFaults faults;
  faults.temperature = 0.8;
  faults.record = FaultRecord::kClaimed;
  double surprise = 0, variance = 0;
  for (int i = 0; i < 4000; ++i) {
    const SampledToken token = Draw(faults, UniformDraw(3, 0, static_cast<uint32_t>(i)));
    EXPECT_EQ(token.behaviour_logprob, LogSoftmaxAt(row, 1, token.id));
    surprise += -double{token.behaviour_logprob} - token.entropy;
    variance += token.logprob_second_moment - double{token.entropy} * token.entropy;
  }
  EXPECT_LT(surprise / std::sqrt(variance), -5);
}

TEST(FaultySampling, AnUndisclosedFilterHasAMeanWeightOfTheKeptMass) {
  const std::vector<float> row = Row();
  struct Case {
    EngineFaults faults;
    double kept;
  };
  std::vector<Case> cases(3);
  cases[0].faults.top_k = 3;
  cases[0].kept = 0.9;
  cases[1].faults.top_p = 0.65;
  cases[1].kept = 0.7;
  cases[2].faults.min_p = 0.7;
  cases[2].kept = 0.7;
  for (Case& one : cases) {
    for (int i = 0; i < 100; ++i) {
      const SampledToken token = Draw(one.faults, (i + 0.5) / 100);
      const double delta = row[token.id] - double{token.behaviour_logprob};
      EXPECT_NEAR(std::exp(delta), one.kept, 1e-6);  // of every token, so of their mean
      EXPECT_EQ(token.kept_mass, 1);                 // the claim
      EXPECT_TRUE(token.support.empty());
    }
    one.faults.record = FaultRecord::kClaimed;
    const SampledToken token = Draw(one.faults, 0.5);
    EXPECT_NEAR(token.behaviour_logprob, row[token.id], 1e-6);
  }
}

TEST(FaultySampling, ClaimedFiltersStayClaimed) {
  EngineFaults faults;
  faults.top_k = 1;
  const SampledToken token = Draw(faults, 0.9, {.top_k = 2, .return_support = true});
  EXPECT_EQ(token.id, 1);
  EXPECT_EQ(token.behaviour_logprob, 0);
  EXPECT_NEAR(token.kept_mass, 0.7, 1e-6);
  EXPECT_THAT(token.support, ::testing::ElementsAre(1, 3));
  // The claimed filter is the tighter one: nothing is undisclosed.
  faults.top_k = 3;
  const SampledToken same = Draw(faults, 0.9, {.top_k = 2});
  EXPECT_NEAR(same.behaviour_logprob, std::log(0.3 / 0.7), 1e-6);
}

TEST(FaultySampling, ForbiddenIdsStayForbiddenUnderEitherRecord) {
  EngineFaults faults;
  faults.temperature = 2;
  for (const FaultRecord record : {FaultRecord::kDrawn, FaultRecord::kClaimed}) {
    faults.record = record;
    const SampledToken token = Draw(faults, 0.999, {}, {0, 2});
    EXPECT_EQ(token.id, 3);
    const double claimed = std::log(0.3 / 0.7),
                 drawn = 0.5 * std::log(0.3) - std::log(std::sqrt(0.3) + std::sqrt(0.4));
    EXPECT_NEAR(token.behaviour_logprob, record == FaultRecord::kDrawn ? drawn : claimed, 1e-6);
  }
}

TEST(FaultySampling, GreedyIsNotTouchedByTransforms) {
  EngineFaults faults;
  faults.temperature = 3;
  faults.top_k = 2;
  const SampledToken token = Draw(faults, 0.99, {.temperature = 0});
  EXPECT_EQ(token.id, 1);
  EXPECT_NEAR(token.behaviour_logprob, std::log(0.4), 1e-6);
}

TEST(FaultySampling, NoiseIsGaussianAndAFunctionOfItsPlaceAlone) {
  constexpr int kIds = 50001;
  std::vector<float> noise(kIds), again(100), elsewhere(kIds);
  AddLogitNoise({5, 2, 9}, 1, noise);
  AddLogitNoise({5, 2, 9}, 1, again);
  EXPECT_EQ(std::vector<float>(noise.begin(), noise.begin() + 100), again);
  double sum = 0, squares = 0, fourths = 0, within = 0;
  for (const float x : noise) {
    sum += x;
    squares += double{x} * x;
    fourths += double{x} * x * x * x;
    within += std::abs(x) < 1;
  }
  EXPECT_NEAR(sum / kIds, 0, 4 / std::sqrt(kIds));
  EXPECT_NEAR(squares / kIds, 1, 4 * std::sqrt(2.0 / kIds));
  EXPECT_NEAR(fourths / kIds, 3, 4 * std::sqrt(96.0 / kIds));
  EXPECT_NEAR(within / kIds, 0.6827, 0.01);
  for (const DrawPlace& place : {DrawPlace{6, 2, 9}, DrawPlace{5, 3, 9}, DrawPlace{5, 2, 10}}) {
    std::fill(elsewhere.begin(), elsewhere.end(), 0.0f);
    AddLogitNoise(place, 1, elsewhere);
    double product = 0;
    for (int i = 0; i < kIds; ++i) product += double{noise[i]} * elsewhere[i];
    EXPECT_NEAR(product / kIds, 0, 4 / std::sqrt(kIds));
  }
}

TEST(FaultySampling, AShareOfTokensHasHeavyNoise) {
  EngineFaults faults;
  faults.logit_noise = 0.1;
  EXPECT_EQ(NoiseOf(faults, {1, 1, 1}), 0.1);
  faults.heavy_tail_probability = 0.05;
  faults.heavy_tail_factor = 10;
  int heavy = 0;
  for (uint32_t position = 0; position < 10000; ++position) {
    const double noise = NoiseOf(faults, {1, 1, position});
    EXPECT_TRUE(noise == 0.1 || noise == 1.0);
    heavy += noise == 1.0;
  }
  EXPECT_NEAR(heavy, 500, 4 * std::sqrt(475.0));
}

// Noise is part of the engine's logits: it is in the record as in the sample.
TEST(FaultySampling, NoiseIsInTheRecord) {
  EngineFaults faults;
  faults.logit_noise = 0.5;
  std::vector<float> noisy = Row();
  AddLogitNoise({7, 0, 0}, 0.5, noisy);
  const SampledToken token = Draw(faults, 0.5);
  EXPECT_EQ(token.behaviour_logprob, LogSoftmaxAt(noisy, 1, token.id));
  EXPECT_EQ(token.raw_logprob, token.behaviour_logprob);
}

}  // namespace
}  // namespace tandem::rollout
