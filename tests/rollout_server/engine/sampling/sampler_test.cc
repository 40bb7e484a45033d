#include "rollout_server/engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "rollout_server/engine/sampling/philox.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What SampleToken reports, worked out in fp64.
struct Expected {
  double behaviour = 0, raw = 0, entropy = 0, second_moment = 0;
};

double LogSumExp(const std::vector<double>& y) {
  double max = -kInfinity, sum = 0;
  for (double v : y) max = std::max(max, v);
  for (double v : y) sum += std::exp(v - max);
  return max + std::log(sum);
}

Expected InDoubles(const std::vector<float>& logits, double temperature, int32_t id) {
  std::vector<double> raw(logits.begin(), logits.end()), scaled;
  for (double v : raw) scaled.push_back(v / temperature);
  const double log_mass = LogSumExp(scaled);
  Expected e{scaled[id] - log_mass, raw[id] - LogSumExp(raw), 0, 0};
  for (double v : scaled) {
    const double log_p = v - log_mass;
    e.entropy -= std::exp(log_p) * log_p;
    e.second_moment += std::exp(log_p) * log_p * log_p;
  }
  return e;
}

SampledToken Sample(const std::vector<float>& logits, const SamplingParams& params, double uniform,
                    const std::vector<int32_t>& forbidden = {}) {
  const auto token = SampleToken(logits, params, forbidden, uniform);
  EXPECT_THAT(token, tandem::testing::IsOk());
  return token.ok() ? *token : SampledToken{.id = -1};
}

std::vector<float> RandomRow(uint32_t seed, size_t size, double spread) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> row(size);
  for (float& x : row) x = static_cast<float>(normal(random));
  return row;
}

// Ids that a fine sweep of uniforms draws, i.e. the support.
std::vector<int32_t> Support(const std::vector<float>& logits, const SamplingParams& params,
                             const std::vector<int32_t>& forbidden = {}) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 4000; ++i) {
    const int32_t id = Sample(logits, params, (i + 0.5) / 4000, forbidden).id;
    if (ids.empty() || ids.back() != id) ids.push_back(id);
  }
  return ids;
}

std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Sampler, ReportsHandWorkedValuesForThreeTokens) {
  // p = 1/2, 1/4, 1/4: entropy 3/2 ln 2; second moment 1/2 (ln 2)^2 + 1/2 (2 ln 2)^2 = 5/2 (ln
  // 2)^2.
  const SampledToken token = Sample(Logs({0.5, 0.25, 0.25}), {}, 0.6);
  const double ln2 = std::log(2.0);
  EXPECT_EQ(token.id, 1);
  EXPECT_NEAR(token.behaviour_logprob, -2 * ln2, 1e-6);
  EXPECT_NEAR(token.raw_logprob, -2 * ln2, 1e-6);
  EXPECT_NEAR(token.entropy, 1.5 * ln2, 1e-6);
  EXPECT_NEAR(token.logprob_second_moment, 2.5 * ln2 * ln2, 1e-6);
}

ScoredToken Scored(const std::vector<float>& logits, const ScoreOptions& options, int32_t id) {
  const auto token = ScoreToken(logits, options, id);
  EXPECT_THAT(token, tandem::testing::IsOk());
  return *token;
}

TEST(Sampler, AScoreReportsHandWorkedValuesForThreeTokens) {
  const double ln2 = std::log(2.0);
  const std::vector<float> row = Logs({0.25, 0.5, 0.25});
  const ScoredToken token = Scored(row, {}, 2);
  EXPECT_NEAR(token.logprob, -2 * ln2, 1e-6);
  EXPECT_NEAR(token.entropy, 1.5 * ln2, 1e-6);
  EXPECT_NEAR(token.logprob_second_moment, 2.5 * ln2 * ln2, 1e-6);
  EXPECT_NEAR(token.squared_probs, 0.25 + 2 * 0.0625, 1e-6);
  EXPECT_NEAR(token.margin, ln2, 1e-6);
  EXPECT_EQ(token.rank, 1);  // the other one of the same logit is not larger
  EXPECT_EQ(Scored(row, {}, 1).rank, 0);

  // T = 1/2: 1/6, 4/6, 1/6; margins and ranks are of the logits.
  const ScoredToken tempered = Scored(row, {.temperature = 0.5f}, 1);
  EXPECT_NEAR(tempered.logprob, std::log(4.0 / 6), 1e-6);
  EXPECT_NEAR(tempered.raw_logprob, -ln2, 1e-6);
  EXPECT_NEAR(tempered.squared_probs, (16.0 + 1 + 1) / 36, 1e-6);
  EXPECT_NEAR(tempered.margin, ln2, 1e-6);

  const ScoredToken kept = Scored(row, {.top_k = 1}, 1), removed = Scored(row, {.top_k = 1}, 0);
  EXPECT_EQ(kept.logprob, 0);
  EXPECT_NEAR(kept.kept_mass, 0.5, 1e-6);
  EXPECT_NEAR(kept.squared_probs, 1, 1e-6);
  EXPECT_EQ(removed.logprob, -std::numeric_limits<float>::infinity());
  EXPECT_NEAR(removed.raw_logprob, -2 * ln2, 1e-6);
  EXPECT_NEAR(removed.kept_mass, 0.5, 1e-6);
}

TEST(Sampler, AScoreOfALongRowAgreesWithPlainDoubles) {
  for (const size_t size : {7, 16, 511, 49152}) {
    const std::vector<float> row = RandomRow(5, size, 3);
    const int32_t id = static_cast<int32_t>(size / 2);
    double mass = 0, squares = 0;
    int32_t rank = 0;
    for (const float z : row) {
      mass += std::exp(double{z});
      squares += std::exp(2 * double{z});
      rank += z > row[id];
    }
    std::vector<float> sorted = row;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const ScoredToken token = Scored(row, {}, id);
    EXPECT_NEAR(token.squared_probs, squares / (mass * mass), 2e-6 * squares / (mass * mass));
    EXPECT_EQ(token.rank, rank);
    EXPECT_EQ(token.margin, sorted[0] - sorted[1]);
  }
}

TEST(Sampler, AScoreOfABrokenRowIsAnError) {
  EXPECT_THAT(ScoreToken(std::vector<float>{1, NAN}, {}, 0),
              FailsWith(absl::StatusCode::kDataLoss, "1 NaN logits"));
}

TEST(Sampler, TemperatureShapesTheBehaviourAndLeavesRawAlone) {
  // T = 1/2 squares: 4/6, 1/6, 1/6.
  const SampledToken token = Sample(Logs({0.5, 0.25, 0.25}), {.temperature = 0.5f}, 0.1);
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.behaviour_logprob, std::log(4.0 / 6), 1e-6);
  EXPECT_NEAR(token.raw_logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(token.entropy, 4.0 / 6 * std::log(1.5) + 2.0 / 6 * std::log(6.0), 1e-6);
}

// Summing 49152 terms in fp32 one by one, or in bf16, misses this bound.
TEST(Sampler, Bug32LogSoftmaxIsFp32) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const double spread = seed % 2 == 0 ? 1.0 : 4.0;
    const std::vector<float> row = RandomRow(seed, 49152, spread);
    for (float temperature : {1.0f, 0.5f, 2.0f}) {
      const SampledToken token = Sample(row, {.temperature = temperature}, 0.1 + 0.15 * seed);
      const Expected want = InDoubles(row, temperature, token.id);
      const double ulp = 1e-6 * std::max(1.0, std::abs(want.behaviour));
      EXPECT_NEAR(token.behaviour_logprob, want.behaviour, ulp);
      EXPECT_NEAR(token.raw_logprob, want.raw, 1e-6 * std::max(1.0, std::abs(want.raw)));
      EXPECT_NEAR(token.entropy, want.entropy, 1e-6 * std::max(1.0, want.entropy));
      EXPECT_NEAR(token.logprob_second_moment, want.second_moment,
                  2e-6 * std::max(1.0, want.second_moment));
      EXPECT_NEAR(LogSoftmaxAt(row, temperature, token.id), want.behaviour, ulp);
    }
  }
}

TEST(Sampler, AddingAConstantToTheLogitsChangesNothing) {
  const std::vector<float> row = {1, 2, 3, 4};
  const std::vector<float> shifted = {1001, 1002, 1003, 1004};
  const SampledToken a = Sample(row, {}, 0.5), b = Sample(shifted, {}, 0.5);
  EXPECT_EQ(a.id, b.id);
  EXPECT_FLOAT_EQ(a.behaviour_logprob, b.behaviour_logprob);
}

TEST(Sampler, InverseCdfTakesTheFirstIdWhoseCumulativeMassExceedsTheUniform) {
  const std::vector<float> row = {0, 0, 0, 0};  // a quarter each, exact
  EXPECT_EQ(Sample(row, {}, 1e-300).id, 0);
  EXPECT_EQ(Sample(row, {}, 0.25 - 1e-9).id, 0);
  EXPECT_EQ(Sample(row, {}, 0.25).id, 1);
  EXPECT_EQ(Sample(row, {}, 0.75).id, 3);
  EXPECT_EQ(Sample(row, {}, 1 - 0x1.0p-53).id, 3);
}

TEST(Sampler, NeverDrawsATokenWithoutMass) {
  const std::vector<float> row = {-kInfinity, 0, -kInfinity, 0, -kInfinity};
  EXPECT_EQ(Sample(row, {}, 1e-300).id, 1);
  EXPECT_EQ(Sample(row, {}, 1 - 0x1.0p-53).id, 3);
}

TEST(Sampler, InverseCdfCrossesSummationBlocks) {
  const std::vector<float> row(2000, 0.0f);
  for (int32_t id : {0, 511, 512, 1023, 1024, 1999}) {
    EXPECT_EQ(Sample(row, {}, (id + 0.5) / 2000).id, id);
  }
}

TEST(Sampler, GreedyTakesTheLargestLogitAndTheLowestIdOnTies) {
  const std::vector<float> row = {1, 3, 2, 3};
  const SampledToken token = Sample(row, {.temperature = 0}, 0.99);
  const Expected want = InDoubles(row, 1, 1);
  EXPECT_EQ(token.id, 1);
  EXPECT_NEAR(token.behaviour_logprob, want.raw, 1e-6);
  EXPECT_EQ(token.behaviour_logprob, token.raw_logprob);
  EXPECT_NEAR(token.entropy, want.entropy, 1e-6);
}

TEST(Sampler, ForbiddenIdsAreNotDrawnAndTheRestIsRenormalised) {
  const std::vector<float> row = Logs({0.5, 0.25, 0.25});
  EXPECT_THAT(Support(row, {}, {0}), ElementsAre(1, 2));
  const SampledToken token = Sample(row, {}, 0.1, {0});
  EXPECT_NEAR(token.behaviour_logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(token.raw_logprob, std::log(0.25), 1e-6);
  EXPECT_EQ(Sample(row, {.temperature = 0}, 0.1, {0}).id, 1);
}

TEST(Sampler, RefusesRowsThatAreNoDistribution) {
  const auto sample = [](std::vector<float> row, std::vector<int32_t> forbidden = {}) {
    return SampleToken(row, {}, forbidden, 0.5);
  };
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(sample({0, NAN, 1}), FailsWith(kDataLoss, "1 NaN logits of 3"));
  EXPECT_THAT(sample({0, kInfinity}), FailsWith(kDataLoss, "largest inf"));
  EXPECT_THAT(sample({-kInfinity, -kInfinity}), FailsWith(kDataLoss, "NaN"));
  EXPECT_THAT(sample({1, 2}, {0, 1}),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no token is left"));
  EXPECT_THAT(sample({1, -kInfinity}, {0}),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no token is left"));
}

// Such a row has no raw log-prob, and the device refuses it too.
TEST(Sampler, ABrokenLogitOfAForbiddenIdIsAnErrorLikeAnyOther) {
  for (const float broken : {NAN, kInfinity}) {
    for (const float temperature : {0.0f, 0.7f, 1.0f}) {
      for (const int32_t top_k : {0, 1}) {
        EXPECT_THAT(
            SampleToken(std::vector<float>{broken, 1, 2},
                        {.temperature = temperature, .top_k = top_k}, std::vector<int32_t>{0}, 0.5),
            FailsWith(absl::StatusCode::kDataLoss, "NaN logits of 3"));
      }
    }
  }
}

// Filters, by hand from p = 0.4, 0.3, 0.15, 0.1, 0.05 in scrambled order of ids.
const std::vector<double> kProbabilities = {0.1, 0.4, 0.05, 0.3, 0.15};

struct FilterCase {
  SamplingParams params;
  std::vector<int32_t> support;
};

TEST(Sampler, KeepsTheSupportOfEachFilter) {
  const std::vector<FilterCase> cases = {
      {{.top_k = 1}, {1}},
      {{.top_k = 3}, {1, 3, 4}},
      {{.top_k = 9}, {0, 1, 2, 3, 4}},
      {{.top_p = 0.3f}, {1}},      // the likeliest always stays
      {{.top_p = 0.65f}, {1, 3}},  // 0.4 + 0.3 is the first sum that reaches 0.65
      {{.top_p = 0.75f}, {1, 3, 4}},
      {{.top_p = 0.97f}, {0, 1, 2, 3, 4}},
      {{.min_p = 0.2f}, {0, 1, 3, 4}},        // at least 0.08
      {{.min_p = 0.5f}, {1, 3}},              // at least 0.2
      {{.top_k = 3, .top_p = 0.5f}, {1, 3}},  // of 0.47, 0.35, 0.18
      {{.top_k = 4, .min_p = 0.3f}, {1, 3, 4}},
  };
  for (const FilterCase& c : cases) {
    EXPECT_EQ(Support(Logs(kProbabilities), c.params), c.support)
        << "top_k " << c.params.top_k << ", top_p " << c.params.top_p << ", min_p "
        << c.params.min_p;
  }
}

TEST(Sampler, FiltersLookAtTheTemperedDistribution) {
  // At T = 1/2 the squares are 0.16, 0.09, 0.0225, 0.01, 0.0025 of 0.285: the top one has 0.56.
  EXPECT_THAT(Support(Logs(kProbabilities), {.temperature = 0.5f, .top_p = 0.55f}), ElementsAre(1));
  EXPECT_THAT(Support(Logs(kProbabilities), {.temperature = 1.0f, .top_p = 0.55f}),
              ElementsAre(1, 3));
}

TEST(Sampler, TopKKeepsEveryTieOfItsLastPlace) {
  EXPECT_THAT(Support({2, 1, 1, 0}, {.top_k = 2}), ElementsAre(0, 1, 2));
}

TEST(Sampler, TheKeptSupportIsRenormalisedInEveryReportedValue) {
  // Kept 0.4 and 0.3: 4/7 and 3/7.
  const SampledToken token = Sample(Logs(kProbabilities), {.top_k = 2}, 0.9);
  const double a = std::log(4.0 / 7), b = std::log(3.0 / 7);
  EXPECT_EQ(token.id, 3);
  EXPECT_NEAR(token.behaviour_logprob, b, 1e-6);
  EXPECT_NEAR(token.raw_logprob, std::log(0.3), 1e-6);
  EXPECT_NEAR(token.entropy, -(4 * a + 3 * b) / 7, 1e-6);
  EXPECT_NEAR(token.logprob_second_moment, (4 * a * a + 3 * b * b) / 7, 1e-6);
}

// Chi-square of counted draws against the distribution, at a significance of 1e-4.
TEST(Sampler, Bug07DrawsFromProbabilitiesNotLogits) {
  constexpr double kCritical[] = {18.42, 21.11, 23.51, 25.74, 27.86, 29.88};  // 2..7 degrees
  constexpr int kDraws = 50000;
  for (size_t tokens = 3; tokens <= 8; ++tokens) {
    const std::vector<float> row = RandomRow(static_cast<uint32_t>(tokens), tokens, 1.0);
    for (float temperature : {1.0f, 0.6f}) {
      std::vector<int> counts(tokens);
      for (uint32_t i = 0; i < kDraws; ++i) {
        ++counts[Sample(row, {.temperature = temperature}, UniformDraw(tokens, i % 32, i / 32)).id];
      }
      double chi_square = 0;
      for (size_t id = 0; id < tokens; ++id) {
        const double expected =
            kDraws * std::exp(InDoubles(row, temperature, static_cast<int32_t>(id)).behaviour);
        chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
      }
      EXPECT_LT(chi_square, kCritical[tokens - 3]) << tokens << " tokens at " << temperature;
    }
  }
}

// The sum of (-log p(a) - H) has mean 0 and variance sum of (E[(log p)^2] - H^2).
TEST(Sampler, RecordedLogProbsAreCalibratedOver100000Draws) {
  std::vector<std::vector<float>> rows;
  for (uint32_t seed = 0; seed < 16; ++seed) rows.push_back(RandomRow(seed, 200, 2.0));
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0.7f},
        SamplingParams{.temperature = 1.3f, .top_k = 40, .top_p = 0.9f}}) {
    double sum = 0, variance = 0;
    for (uint32_t i = 0; i < 100000; ++i) {
      const SampledToken t = Sample(rows[i % 16], params, UniformDraw(5, i % 64, i / 64));
      sum += -double{t.behaviour_logprob} - t.entropy;
      variance += double{t.logprob_second_moment} - double{t.entropy} * t.entropy;
    }
    EXPECT_LT(std::abs(sum / std::sqrt(variance)), 4);
  }
}

TEST(Sampler, FiltersReportTheMassTheyKeptAndOnRequestTheSupport) {
  // 0.4 + 0.3 reach 0.6; renormalised they are 4/7 and 3/7.
  SamplingParams params = {.top_p = 0.6f};
  const std::vector<float> row = Logs({0.1, 0.4, 0.2, 0.3});
  SampledToken token = Sample(row, params, 0.9);
  EXPECT_EQ(token.id, 3);
  EXPECT_NEAR(token.kept_mass, 0.7, 1e-6);
  EXPECT_NEAR(token.behaviour_logprob, std::log(3.0 / 7), 1e-6);
  EXPECT_NEAR(token.raw_logprob, std::log(0.3), 1e-6);
  EXPECT_NEAR(token.entropy, 4.0 / 7 * std::log(7.0 / 4) + 3.0 / 7 * std::log(7.0 / 3), 1e-6);
  EXPECT_TRUE(token.support.empty());
  params.return_support = true;
  EXPECT_THAT(Sample(row, params, 0.9).support, ElementsAre(1, 3));
  // Nothing is removed, so there is no support to tell of.
  const SampledToken whole = Sample(row, {.return_support = true}, 0.9);
  EXPECT_EQ(whole.kept_mass, 1.0f);
  EXPECT_TRUE(whole.support.empty());
}

TEST(Sampler, TopLogprobsAreThoseOfTheBehaviourDistribution) {
  const std::vector<float> row = Logs({0.1, 0.4, 0.2, 0.3});
  const SampledToken token = Sample(row, {.top_logprobs = 2}, 0.01);
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_NEAR(token.top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(token.top[1].id, 3);
  EXPECT_NEAR(token.top[1].logprob, std::log(0.3), 1e-6);
  const SampledToken filtered = Sample(row, {.top_k = 2, .top_logprobs = 3}, 0.01);
  ASSERT_EQ(filtered.top.size(), 2u);  // no more is left
  EXPECT_NEAR(filtered.top[0].logprob, std::log(4.0 / 7), 1e-6);
}

// The smallest set with enough mass, found by sorting everything.
TEST(Sampler, TopPKeepsTheSmallestSetThatReachesItsMassHoweverManyThatAre) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const std::vector<float> row = RandomRow(seed, 3000, seed % 2 == 0 ? 0.5 : 3.0);
    std::vector<int32_t> order(row.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    double mass = 0;
    for (const float x : row) mass += std::exp(double{x});
    for (const float top_p : {0.05f, 0.5f, 0.9f, 0.999f}) {
      std::vector<int32_t> want;
      for (double above = 0; above < top_p * mass;) {
        want.push_back(order[want.size()]);
        above += std::exp(double{row[want.back()]});
      }
      std::sort(want.begin(), want.end());
      EXPECT_EQ(Sample(row, {.top_p = top_p, .return_support = true}, 0.5).support, want)
          << "seed " << seed << " top_p " << top_p;
    }
  }
}

// 200 000 draws each against exact probabilities; the critical values are those of p = 0.001.
TEST(Sampler, DrawsFollowTheDistributionItReports) {
  constexpr int kDraws = 200'000;
  const std::vector<float> row = Logs({0.02, 0.3, 0.08, 0.25, 0.05, 0.15, 0.1, 0.05});
  struct Case {
    SamplingParams params;
    double critical;  // chi-square, degrees of freedom below
    size_t kept;
  };
  for (const Case& c : {Case{{}, 24.32, 8},                     // 7 degrees
                        Case{{.temperature = 0.7f}, 24.32, 8},  // 7
                        Case{{.top_k = 4}, 16.27, 4},           // 3
                        Case{{.top_p = 0.79f}, 16.27, 4},       // .3 .25 .15 .1 reach 0.79
                        Case{{.min_p = 0.3f}, 16.27, 4}}) {     // at least 0.09
    std::vector<int> counts(row.size());
    std::vector<double> p(row.size());
    for (int i = 0; i < kDraws; ++i) {
      const SampledToken token =
          Sample(row, c.params, UniformDraw(77, static_cast<uint32_t>(i % 8), i / 8));
      ++counts[token.id];
      p[token.id] = std::exp(double{token.behaviour_logprob});
    }
    double chi_square = 0, total = 0;
    size_t kept = 0;
    for (size_t id = 0; id < row.size(); ++id) {
      if (p[id] == 0) continue;
      ++kept;
      total += p[id];
      const double expected = p[id] * kDraws;
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    EXPECT_EQ(kept, c.kept);
    EXPECT_NEAR(total, 1, 1e-6);
    EXPECT_LT(chi_square, c.critical);
  }
}

}  // namespace
}  // namespace tandem::rollout
