#include "common/drift/probe_drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tandem::offpolicy {
namespace {

constexpr float kNaNFloat = std::numeric_limits<float>::quiet_NaN();

TEST(ProbeDrift, AddsUpDeltasByHand) {
  const std::vector<int32_t> completion = {0, 0, 1};
  const std::vector<float> trainer = {-1.0f, -2.0f, -0.5f}, server = {-1.5f, -1.75f, -0.5f};
  const ProbeDrift drift = ComputeProbeDrift(completion, trainer, {{{server}}});
  // delta: 0.5, -0.25, 0
  EXPECT_EQ(drift.num_tokens, 3);
  EXPECT_DOUBLE_EQ(drift.k1.value, -0.25 / 3);
  EXPECT_DOUBLE_EQ(drift.mean_abs_delta.value, 0.25);
  EXPECT_DOUBLE_EQ(drift.square.value, (0.25 + 0.0625) / 3);
  EXPECT_DOUBLE_EQ(drift.k3.value, (std::exp(0.5) - 1.5 + std::exp(-0.25) - 0.75) / 3);
  EXPECT_FALSE(drift.k1.known()) << "two completions are too few for an interval";
}

TEST(ProbeDrift, ServersCountByTheirSharesAndATokenOneCouldNotScoreIsLeftOut) {
  const std::vector<int32_t> completion = {0, 1};
  const std::vector<float> trainer = {0, 0}, near = {-1, -1}, far = {-3, kNaNFloat};
  const std::vector<ServerScores> servers = {{near, 0.75}, {far, 0.25}};
  const ProbeDrift drift = ComputeProbeDrift(completion, trainer, servers);
  EXPECT_EQ(drift.num_tokens, 1);
  EXPECT_EQ(drift.num_missing, 1);
  EXPECT_DOUBLE_EQ(drift.mean_abs_delta.value, 0.75 * 1 + 0.25 * 3);
  EXPECT_DOUBLE_EQ(drift.square.value, 0.75 * 1 + 0.25 * 9);
}

TEST(ProbeDrift, TheIntervalIsOverCompletionsNotTokens) {
  // The tokens of a completion are copies, so 8 completions of 100 tokens carry as much information
  // as 8 tokens.
  std::vector<int32_t> few_completion, many_completion;
  std::vector<float> few_server, many_server;
  for (int s = 0; s < 8; ++s) {
    few_completion.push_back(s);
    few_server.push_back(-0.1f * static_cast<float>(s));
    many_completion.insert(many_completion.end(), 100, s);
    many_server.insert(many_server.end(), 100, -0.1f * static_cast<float>(s));
  }
  const ProbeDrift few = ComputeProbeDrift(few_completion, std::vector<float>(8), {{{few_server}}});
  const ProbeDrift many =
      ComputeProbeDrift(many_completion, std::vector<float>(800), {{{many_server}}});
  ASSERT_TRUE(few.mean_abs_delta.known());
  EXPECT_NEAR(many.mean_abs_delta.low, few.mean_abs_delta.low, 1e-6);
  EXPECT_NEAR(many.mean_abs_delta.high, few.mean_abs_delta.high, 1e-6);
  EXPECT_GT(few.mean_abs_delta.low, 0.1);
  EXPECT_LT(few.mean_abs_delta.low, 0.35);
}

TEST(ProbeDrift, SquaresOfACompletionWithoutAScoreAreUnknown) {
  const std::vector<int32_t> completion = {0, 0, 1};
  const std::vector<float> trainer = {0, 0, 0}, server = {-1, -2, kNaNFloat};
  const auto squares = SquareSums(completion, 2, trainer, server);
  EXPECT_EQ(squares[0], 5);
  EXPECT_TRUE(std::isnan(squares[1]));
}

TEST(IntervalOfDifference, AddsTheDistancesOfTheBoundsBehindItInSquares) {
  const Interval a = {.value = 3, .low = 2, .high = 5}, b = {.value = 1, .low = 0.5, .high = 1.75};
  const Interval difference = IntervalOfDifference(a, b);
  EXPECT_DOUBLE_EQ(difference.value, 2);
  EXPECT_DOUBLE_EQ(difference.low, 2 - 1.25);              // hypot(1, 0.75)
  EXPECT_DOUBLE_EQ(difference.high, 2 + std::sqrt(4.25));  // hypot(2, 0.5)
  EXPECT_FALSE(IntervalOfDifference(a, {.value = 1}).known());
}

}  // namespace
}  // namespace tandem::offpolicy
