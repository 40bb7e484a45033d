#include "drift_lab/phase/toy/gap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {
namespace {

// A warm-started policy and a behaviour policy with a gap to it.
class Pair {
 public:
  explicit Pair(const Gap& gap)
      : task_(8, 1), parameters_(WarmStart(task_, {}, 1)), policy_(8), behaviour_(gap, task_, 1) {
    policy_.Use(parameters_);
    behaviour_.Use(policy_, 0);
  }

  const Distribution& pi(int context) { return policy_.At(context).logprobs; }
  Distribution mu(int context, uint32_t row = 0) { return behaviour_.At(context, row); }
  void GoToStep(uint32_t step) { behaviour_.Use(policy_, step); }
  const Task& task() const { return task_; }

 private:
  const Task task_;
  const Parameters parameters_;
  ContextTable policy_;
  BehaviourPolicy behaviour_;
};

double Sum(const Distribution& logprobs) {
  double sum = 0;
  for (const double logprob : logprobs) sum += std::exp(logprob);
  return sum;
}

constexpr Direction kAllDirections[] = {Direction::kFreshNoise,     Direction::kFrozenNoise,
                                        Direction::kTokenBias,      Direction::kTowardsReward,
                                        Direction::kAwayFromReward, Direction::kRareTokens,
                                        Direction::kSharpen,        Direction::kFlatten};

TEST(ToyGapTest, WithoutAGapTheBehaviourPolicyIsThePolicy) {
  Pair pair({});
  for (int context = 0; context < NumContexts(8); context += 37) {
    EXPECT_EQ(pair.mu(context), pair.pi(context));
  }
}

// log mu = log pi / T - log Z, so KL(mu || pi) = (1/T - 1) E_mu[log pi] - log Z.
TEST(ToyGapTest, TemperatureHasTheClosedFormsOfItsTiltAndKl) {
  Pair pair({.kind = GapKind::kTemperature, .strength = 0.7});
  for (int context = 0; context < NumContexts(8); context += 101) {
    const Distribution pi = pair.pi(context), mu = pair.mu(context);
    double z = 0, mean = 0;
    for (const double logprob : pi) z += std::exp(logprob / 0.7);
    for (size_t a = 0; a < kTokens; ++a) {
      EXPECT_NEAR(mu[a], pi[a] / 0.7 - std::log(z), 1e-12);
      mean += std::exp(mu[a]) * pi[a];
    }
    EXPECT_NEAR(KlDivergence(mu, pi), (1 / 0.7 - 1) * mean - std::log(z), 1e-12);
  }
}

// To second order KL = sigma^2 / 2 (1 - sum p^2) in the mean over the noise.
TEST(ToyGapTest, LogitNoiseHasTheKlOfItsSize) {
  constexpr double kSigma = 0.05;
  constexpr uint32_t kDraws = 4000;
  Pair pair({.kind = GapKind::kLogitNoise, .strength = kSigma});
  const int context = ContextIndex({3, 0, kStart});
  double squares = 0, kl = 0;
  for (const double logprob : pair.pi(context)) squares += std::exp(2 * logprob);
  for (uint32_t row = 0; row < kDraws; ++row) {
    kl += KlDivergence(pair.mu(context, row), pair.pi(context)) / kDraws;
  }
  const double expected = kSigma * kSigma / 2 * (1 - squares);
  EXPECT_NEAR(kl / expected, 1, 0.1);
}

TEST(ToyGapTest, UniformTokensAreTheShareAskedFor) {
  constexpr uint32_t kDraws = 20000;
  Pair pair({.kind = GapKind::kUniformTokens, .strength = 0.1});
  const int context = ContextIndex({3, 2, 4});
  int num_uniform = 0;
  for (uint32_t row = 0; row < kDraws; ++row) {
    const Distribution mu = pair.mu(context, row);
    if (mu == pair.pi(context)) continue;
    ++num_uniform;
    for (const double logprob : mu) ASSERT_NEAR(logprob, -std::log(16), 1e-15);
  }
  EXPECT_NEAR(num_uniform, 2000, 4 * std::sqrt(20000 * 0.1 * 0.9));
}

TEST(ToyGapTest, ATiltHasTheConstantKlInEveryContextThatCanReachIt) {
  constexpr double kKl = 0.02;
  for (const Direction direction : kAllDirections) {
    Pair pair({.kind = GapKind::kTilt,
               .strength = kKl,
               .direction = direction,
               .budget = KlBudget::kConstant});
    int num_reached = 0, num_contexts = 0;
    for (int context = 0; context < NumContexts(8); context += 13, ++num_contexts) {
      const Distribution mu = pair.mu(context);
      EXPECT_NEAR(Sum(mu), 1, 1e-12);
      const double kl = KlDivergence(mu, pair.pi(context));
      EXPECT_LE(kl, kKl * (1 + 1e-5));
      num_reached += kl > kKl * (1 - 1e-5);
    }
    EXPECT_GT(num_reached, num_contexts * 3 / 4) << static_cast<int>(direction);
  }
}

// A direction whose largest element is one token's can take mu up to that token alone, KL = -log p,
// which is over (1 - sum p^2) / 2 whatever p is. Away from the reward there are 15 such tokens, and
// where the rewarded one is unlikely there is little to take away.
TEST(ToyGapTest, TheBudgetByUncertaintyIsReachedInEveryContext) {
  for (const Direction direction : kAllDirections) {
    Pair pair({.kind = GapKind::kTilt,
               .strength = 0.45,
               .direction = direction,
               .budget = KlBudget::kByUncertainty});
    for (int index = 0; index < NumContexts(8); index += 13) {
      double squares = 0;
      for (const double logprob : pair.pi(index)) squares += std::exp(2 * logprob);
      const Context context = ContextOf(index);
      const auto rewarded =
          static_cast<size_t>(pair.task().target(context.prompt, context.position));
      const double bound = direction == Direction::kAwayFromReward
                               ? -std::log1p(-std::exp(pair.pi(index)[rewarded]))
                               : 1;
      const double wanted = std::min(0.45 * (1 - squares), bound);
      EXPECT_NEAR(KlDivergence(pair.mu(index), pair.pi(index)), wanted, 1e-5 * wanted)
          << static_cast<int>(direction) << " in context " << index;
    }
  }
}

TEST(ToyGapTest, DirectionsMoveWhatTheyAreNamedAfter) {
  const auto gap = [](Direction direction) {
    return Gap{.kind = GapKind::kTilt, .strength = 0.01, .direction = direction};
  };
  Pair towards(gap(Direction::kTowardsReward)), away(gap(Direction::kAwayFromReward)),
      rare(gap(Direction::kRareTokens));
  const Context place{2, 3, 5};
  const int context = ContextIndex(place);
  const auto rewarded = static_cast<size_t>(towards.task().target(place.prompt, place.position));
  const Distribution pi = towards.pi(context);
  EXPECT_GT(towards.mu(context)[rewarded], pi[rewarded]);
  EXPECT_LT(away.mu(context)[rewarded], pi[rewarded]);
  Distribution sorted = pi;
  std::sort(sorted.begin(), sorted.end());
  for (size_t a = 0; a < kTokens; ++a) {
    if (pi[a] < sorted[8]) {
      EXPECT_GT(rare.mu(context)[a], pi[a]);
    } else {
      EXPECT_LT(rare.mu(context)[a], pi[a]);
    }
  }
}

TEST(ToyGapTest, FreshNoiseIsAnotherForEveryTokenAndFrozenNoiseIsNot) {
  const auto gap = [](Direction direction) {
    return Gap{.kind = GapKind::kTilt, .strength = 0.01, .direction = direction};
  };
  Pair fresh(gap(Direction::kFreshNoise)), frozen(gap(Direction::kFrozenNoise)),
      bias(gap(Direction::kTokenBias));
  EXPECT_NE(fresh.mu(40, 0), fresh.mu(40, 1));
  const Distribution first = frozen.mu(40, 0);
  EXPECT_EQ(first, frozen.mu(40, 1));
  frozen.GoToStep(1);
  EXPECT_EQ(first, frozen.mu(40, 0));
  // A bias of the vocabulary: log mu - log pi of two contexts differ by a factor and a constant
  // only.
  const auto shift = [&](Pair& pair, int context, size_t a, size_t b) {
    return pair.mu(context)[a] - pair.pi(context)[a] - pair.mu(context)[b] + pair.pi(context)[b];
  };
  const double ratio = shift(bias, 40, 0, 1) / shift(bias, 90, 0, 1);
  EXPECT_NEAR(shift(bias, 40, 2, 3) / shift(bias, 90, 2, 3), ratio, 1e-6 * ratio);
  const double frozen_ratio = shift(frozen, 40, 0, 1) / shift(frozen, 90, 0, 1);
  EXPECT_GT(std::abs(shift(frozen, 40, 2, 3) / shift(frozen, 90, 2, 3) - frozen_ratio), 0.1);
}

// p = (1/2, 1/2), d = (1, 0): mu = (q, 1 - q) with KL = log 2 - H(q).
TEST(ToyTiltTest, ATiltOfTwoTokensIsWorkedByHand) {
  Distribution p;
  p.fill(-1e9);
  p[0] = p[1] = -std::log(2);
  Distribution direction{};
  direction[0] = 1;
  const Tilted tilted = TiltBy(p, direction, std::log(3));
  EXPECT_NEAR(std::exp(tilted.logprobs[0]), 0.75, 1e-12);
  const double kl = std::log(2) + 0.75 * std::log(0.75) + 0.25 * std::log(0.25);
  EXPECT_NEAR(tilted.kl, kl, 1e-12);
  EXPECT_NEAR(TiltToKl(p, direction, kl).scale, std::log(3), 1e-5);
}

TEST(ToyTiltTest, AKlOutOfReachGivesTheBoundOfTheDirection) {
  Distribution p;
  p.fill(-1e9);
  p[0] = std::log(0.9);
  p[1] = std::log(0.1);
  Distribution direction{};
  direction[0] = 1;
  EXPECT_NEAR(TiltToKl(p, direction, 0.5).kl, -std::log(0.9), 1e-9);
  EXPECT_EQ(TiltToKl(p, Distribution{}, 0.5).kl, 0);
}

}  // namespace
}  // namespace tandem::drift
