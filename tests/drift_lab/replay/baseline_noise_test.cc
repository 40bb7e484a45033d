#include "drift_lab/replay/baseline_noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/common/drift/token_lines.h"
#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// Two completions: w = 2, 1/2 and w = 4; one token that is not trained.
offpolicy::TokenLines TwoCompletions() {
  offpolicy::TokenLines lines;
  lines.Add(0.2, 0.4, 1, 0);
  lines.Add(0.4, 0.2, 1, 0);
  lines.Add(0.1, 0.4, 1, 1);
  lines.Add(0.1, 0.9, 1, 1, /*masked_in=*/false);
  return lines;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

TEST(BaselineNoiseTest, StatisticsAreThoseOfTheirFormulas) {
  const offpolicy::TokenLines lines = TwoCompletions();
  const offpolicy::TokenRecord record = lines.view();
  const BaselineNoise noise = MeasureBaseline({&record, 1});
  const double l = std::log(2);
  EXPECT_EQ(noise.num_tokens(), 3);
  EXPECT_EQ(noise.num_completions(), 2);
  ExpectNear(noise.token_w, {0.5, 2, 4});
  ExpectNear(noise.product, {1, 4});
  ExpectNear(noise.geometric, {1, 4});
  ExpectNear(noise.smallest_w, {0.5, 4});
  ExpectNear(noise.largest_k3, {1 - l, 3 - 2 * l});
  ExpectNear(noise.mean_k3, {(1 - l + (-0.5 + l)) / 2, 3 - 2 * l});
  // delta: l, -l, 2 l; mean 2/3 l, squares 6 l^2: variance (6 - 4/3) / 2 l^2 = 7/3 l^2.
  const double s = l * std::sqrt(7.0 / 3);
  EXPECT_NEAR(noise.standard_deviation, s, 1e-6);
  ExpectNear(noise.length_aware, {s / 2 * std::sqrt(2.0), (2 * l + s * s / 2) / s});
}

TEST(BaselineNoiseTest, BaselinesAddUp) {
  const offpolicy::TokenLines lines = TwoCompletions();
  const offpolicy::TokenRecord both[] = {lines.view(), lines.view()};
  const BaselineNoise noise = MeasureBaseline(both);
  ExpectNear(noise.token_w, {0.5, 0.5, 2, 2, 4, 4});
  ExpectNear(noise.product, {1, 1, 4, 4});
}

BaselineNoise EvenlySpaced(int count) {
  BaselineNoise noise{.standard_deviation = 0.02};
  for (int i = 0; i < count; ++i) {
    noise.token_w.push_back(0.5 + 0.01 * i);
    noise.product = noise.geometric = noise.smallest_w = noise.token_w;
    noise.length_aware.push_back(i);
  }
  return noise;
}

TEST(BaselineNoiseTest, ThresholdsAreOrderStatisticsWithinWhatSettingsAccept) {
  const BaselineNoise noise = EvenlySpaced(99);  // 0.5 .. 1.48; (99 + 1) a values are beyond
  EXPECT_EQ(BaselineThreshold(noise, ThresholdRule::kTokenCeiling, 0.1).value().substr(0, 4),
            "1.39");
  EXPECT_EQ(std::stod(BaselineThreshold(noise, ThresholdRule::kSmallest, 0.1).value()),
            0.5 + 0.01 * 9);
  EXPECT_EQ(BaselineThreshold(noise, ThresholdRule::kTokenCeiling, 0.9).value(),
            "1");  // 0.59 is no ceiling
  const std::string bounds = BaselineThreshold(noise, ThresholdRule::kProductBounds, 0.1).value();
  EXPECT_NEAR(std::stod(bounds), 0.54, 1e-12);
  EXPECT_NEAR(std::stod(bounds.substr(bounds.find(':') + 1)), 1.44, 1e-12);
  const std::string clip = BaselineThreshold(noise, ThresholdRule::kClipRange, 0.1).value();
  EXPECT_NEAR(std::stod(clip), 0.46, 1e-12);
  EXPECT_NEAR(std::stod(clip.substr(clip.find(':') + 1)), 0.44, 1e-12);
  const std::string aware = BaselineThreshold(noise, ThresholdRule::kLengthAware, 0.05).value();
  EXPECT_EQ(std::stod(aware), 94);
  EXPECT_EQ(std::stod(aware.substr(aware.find(':') + 1)), 0.02);
}

TEST(BaselineNoiseTest, SaysHowManyCompletionsARateTakes) {
  EXPECT_THAT(
      BaselineThreshold(EvenlySpaced(18), ThresholdRule::kProductCeiling, 0.05),
      FailsWith(absl::StatusCode::kFailedPrecondition,
                "the baseline has 18 completions, and a rate of 0.05 on one side takes 19"));
  EXPECT_THAT(BaselineThreshold(EvenlySpaced(19), ThresholdRule::kProductCeiling, 0.05), IsOk());
}

TEST(BaselineNoiseTest, ABaselineWithoutDriftHasNoNoiseToChooseBy) {
  offpolicy::TokenLines lines;
  for (int s = 0; s < 40; ++s) lines.Add(0.3, 0.3, 1, s);
  const offpolicy::TokenRecord record = lines.view();
  EXPECT_THAT(BaselineThreshold(MeasureBaseline({&record, 1}), ThresholdRule::kTokenBounds, 0.1),
              FailsWith(absl::StatusCode::kFailedPrecondition, "exactly 0"));
}

// Heavy-tailed gaps, completions of unequal length: whatever the distribution, a new healthy
// completion is refused as often as was asked for.
TEST(BaselineNoiseTest, HealthyCompletionsAreRefusedAtTheStatedRate) {
  std::mt19937 random(5);
  std::student_t_distribution<double> gap(3);
  const auto sample = [&](int completions) {
    offpolicy::TokenLines lines;
    for (int s = 0; s < completions; ++s) {
      const int length = 1 + static_cast<int>(random() % 60);
      for (int t = 0; t < length; ++t) lines.Add(0.1, 0.1 * std::exp(0.01 * gap(random)), 1, s);
    }
    return lines;
  };
  constexpr int kBaselines = 300, kFresh = 20;
  int refused = 0;
  for (int i = 0; i < kBaselines; ++i) {
    const offpolicy::TokenLines baseline = sample(39), fresh = sample(kFresh);
    const offpolicy::TokenRecord record = baseline.view();
    const BaselineNoise noise = MeasureBaseline({&record, 1});
    const double z = std::stod(BaselineThreshold(noise, ThresholdRule::kLengthAware, 0.1).value());
    std::vector<double> sums(kFresh), tokens(kFresh);
    for (size_t t = 0; t < fresh.mask.size(); ++t) {
      const auto s = static_cast<size_t>(fresh.sequence[t]);
      sums[s] += fresh.view().Delta(t);
      ++tokens[s];
    }
    const double s = noise.standard_deviation;
    for (size_t c = 0; c < sums.size(); ++c) {
      refused += std::abs(sums[c] / tokens[c] + s * s / 2) > z * s / std::sqrt(tokens[c]);
    }
  }
  EXPECT_NEAR(static_cast<double>(refused) / (kBaselines * kFresh), 0.1, 0.015);
}

}  // namespace
}  // namespace tandem::drift
