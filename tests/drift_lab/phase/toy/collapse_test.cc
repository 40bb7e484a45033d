// The acceptance numbers of the toy (mismatch table of the drift lab's design), on two seeds: what
// collapses, and what saves it.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {
namespace {

constexpr int kSeeds = 2;

// Mean score over the seeds, one thread a seed.
double MeanScore(Method method, const Gap& gap) {
  std::vector<double> scores(kSeeds);
  std::vector<std::thread> threads;
  for (int seed = 0; seed < kSeeds; ++seed) {
    threads.emplace_back([&, seed] {
      scores[static_cast<size_t>(seed)] =
          RunToy({.gap = gap, .method = method, .seed = static_cast<uint64_t>(seed + 1)}).score;
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double score : scores) sum += score;
  return sum / kSeeds;
}

constexpr Gap kLag64 = {.lag = 64};
constexpr Gap kSharpSampler = {.kind = GapKind::kTemperature, .strength = 0.7};

TEST(ToyCollapseTest, WithoutAGapEveryMethodLearns) {
  for (const Method method : AllMethods()) {
    EXPECT_GT(MeanScore(method, {}), 0.95) << MethodName(method);
  }
}

TEST(ToyCollapseTest, Lag64CollapsesWithoutACorrection) {
  EXPECT_LT(MeanScore(Method::kNone, kLag64), 0.15);
}

TEST(ToyCollapseTest, Lag64IsRescuedByTokenWeights) {
  EXPECT_GT(MeanScore(Method::kTokenTis, kLag64), 0.95);
}

TEST(ToyCollapseTest, ASharperSamplerCollapsesUnderASequenceMask) {
  EXPECT_LT(MeanScore(Method::kSequenceMis, kSharpSampler), 0.35);
}

TEST(ToyCollapseTest, ASharperSamplerIsFineUnderTokenWeights) {
  EXPECT_GT(MeanScore(Method::kTokenTis, kSharpSampler), 0.85);
}

}  // namespace
}  // namespace tandem::drift
