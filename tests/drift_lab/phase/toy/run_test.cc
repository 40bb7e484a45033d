#include "drift_lab/phase/toy/run.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::drift {
namespace {

RunOptions Short(Method method, const Gap& gap, int steps) {
  return {.gap = gap, .method = method, .steps = steps, .seed = 1};
}

TEST(ToyRunTest, IsAFunctionOfItsOptions) {
  const RunResult a = RunToy(Short(Method::kTokenTis, {.lag = 4}, 30));
  const RunResult b = RunToy(Short(Method::kTokenTis, {.lag = 4}, 30));
  EXPECT_EQ(a.score, b.score);
  EXPECT_EQ(a.trace.size(), 6u);  // steps 0, 5, ..., 25
  RunOptions other = Short(Method::kTokenTis, {.lag = 4}, 30);
  other.seed = 2;
  EXPECT_NE(RunToy(other).score, a.score);
}

TEST(ToyRunTest, WithoutAGapEveryMethodIsTheSameRun) {
  const RunResult expected = RunToy(Short(Method::kNone, {}, 30));
  for (const Method method : AllMethods()) {
    EXPECT_EQ(RunToy(Short(method, {}, 30)).score, expected.score) << MethodName(method);
  }
  for (const TraceRow& row : expected.trace) {
    EXPECT_EQ(At(row, Watched::kK3), 0);
    EXPECT_EQ(At(row, Watched::kKl), 0);
    EXPECT_EQ(At(row, Watched::kEss), 1);
  }
}

// The behaviour policy is the start until `lag` updates have been made and then follows at that
// distance. So by their KL a run with lag 10 and one with lag 20 are the same up to step 10, and
// one with lag 4 is nearer from step 5 on, when it samples from the weights after the first update.
TEST(ToyRunTest, TheBehaviourPolicyIsAsManyUpdatesBehindAsTheLag) {
  const auto kl_of = [](int lag) {
    const RunResult run = RunToy(Short(Method::kTokenTis, {.lag = lag}, 20));
    std::vector<double> kl;  // at steps 0, 5, 10, 15
    for (const TraceRow& row : run.trace) kl.push_back(At(row, Watched::kKl));
    return kl;
  };
  const std::vector<double> four = kl_of(4), ten = kl_of(10), twenty = kl_of(20);
  EXPECT_EQ(ten[0], 0);
  EXPECT_GT(ten[1], 0);
  EXPECT_LT(four[1], twenty[1]);
  EXPECT_EQ(ten[1], twenty[1]);
  EXPECT_EQ(ten[2], twenty[2]);
  EXPECT_LT(ten[3], twenty[3]);
}

// The first update is Adam's: its size does not depend on the gradient's, so the trace's norm is
// checked through the clip: it is the norm of the mean over tokens, far under 1.
TEST(ToyRunTest, TheTraceHoldsTheGradientNormAndTheKeptShares) {
  const RunResult run =
      RunToy(Short(Method::kSequenceMis, {.kind = GapKind::kTemperature, .strength = 0.7}, 5));
  const TraceRow& first = run.trace.front();
  EXPECT_GT(At(first, Watched::kGradientNorm), 0);
  EXPECT_LT(At(first, Watched::kGradientNorm), 1);
  // Right answers are over-sampled by a sharper sampler, so their product of ratios is small.
  EXPECT_LT(At(first, Watched::kKeptPositive), 0.3);
  EXPECT_GT(At(first, Watched::kKeptNegative), 0.5);
  const double dropped = At(first, Watched::kDropped);
  EXPECT_GT(dropped, 1 - At(first, Watched::kKeptNegative) - 0.1);
  EXPECT_LT(dropped, 1 - At(first, Watched::kKeptPositive));
}

TEST(ToyRunTest, TheScoreIsTheMeanOfTheLastFiftyUpdates) {
  const RunResult run = RunToy(Short(Method::kNone, {}, 100));
  EXPECT_NEAR(run.start, 0.30, 0.02);
  // Learning is steady here: the last half's mean lies between the score at step 50 and the
  // highest.
  EXPECT_GT(run.score, At(run.trace[10], Watched::kScore));
  EXPECT_LT(run.score, run.highest);
  EXPECT_LT(run.mean_score, run.score);
  EXPECT_EQ(run.halved_at, -1);
}

}  // namespace
}  // namespace tandem::drift
