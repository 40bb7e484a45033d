#include "trainer/loss/pair_objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/common/offpolicy/toy_policy.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/preferences/central_difference.h"
#include "trainer/loss/correction_tensors.h"
#include "trainer/preferences/preference_loss.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddTo;
using ::tandem::testing::CentralDifference;
using ::tandem::testing::Distance;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::ToyPolicy;
using ::tandem::testing::ToySequence;
using ::testing::ElementsAre;

// Tokens of a row: a prompt token, the chosen completion of two, the rejected one of three.
struct OnePair {
  std::vector<double> target = {0, -1, -2, -0.5, -0.25, -1};
  std::vector<double> reference = {0, -1.5, -2.5, -0.5, -0.5, -0.5};
  std::vector<double> weight = {0, 1, 1, 1, 1, 1};
  std::vector<double> advantages = {0, 1, 1, -1, -1, -1};
  std::vector<uint8_t> kept = {0, 1, 1, 1, 1, 1};
  std::vector<int64_t> completion = {-1, 0, 0, 1, 1, 1};
  PairNumbers numbers;

  offpolicy::Objective Compute(const PreferenceLossOptions& options,
                               const std::vector<double>& at) {
    return ComputePairObjective({.tokens = {.target_logprobs = at,
                                            .centre_logprobs = at,
                                            .weight = weight,
                                            .advantages = advantages,
                                            .kept = kept,
                                            .completion = completion},
                                 .reference_logprobs = reference,
                                 .mean_chosen_tokens = 2},
                                options, numbers);
  }
  offpolicy::Objective Compute(const PreferenceLossOptions& options) {
    return Compute(options, target);
  }
};

// chosen -3 - (-4) = 1, rejected -1.75 - (-1.5) = -0.25; h = 0.5 x 1.25.
TEST(PairObjective, IsTheLossOfTheSummedLogprobsOfBothCompletions) {
  OnePair pair;
  const offpolicy::Objective got = pair.Compute({.beta = 0.5});
  const double h = 0.625, slope = -0.5 / (1 + std::exp(h));
  EXPECT_NEAR(got.value[1], std::log1p(std::exp(-h)), 1e-12);
  EXPECT_THAT(std::vector(got.value.begin() + 2, got.value.end()), ElementsAre(0, 0, 0, 0));
  for (const size_t t : {1, 2}) EXPECT_NEAR(got.slope[t], slope, 1e-12);
  for (const size_t t : {3, 4, 5}) EXPECT_NEAR(got.slope[t], -slope, 1e-12);
  EXPECT_EQ(got.slope[0], 0) << "a prompt token is in no completion";
  EXPECT_EQ(pair.numbers.num_pairs, 1);
  EXPECT_NEAR(pair.numbers.chosen_reward, 0.5, 1e-12);
  EXPECT_NEAR(pair.numbers.rejected_reward, -0.125, 1e-12);
  EXPECT_NEAR(pair.numbers.margin, 0.625, 1e-12);
  EXPECT_EQ(pair.numbers.accuracy, 1);
  EXPECT_NEAR(pair.numbers.chosen_logprob, -3, 1e-12);
  EXPECT_NEAR(pair.numbers.rejected_logprob, -1.75, 1e-12);
}

TEST(PairObjective, TheAdvantageSaysWhichCompletionIsChosen) {
  OnePair pair;
  pair.advantages = {0, -1, -1, 1, 1, 1};
  const offpolicy::Objective got = pair.Compute({.beta = 0.5});
  EXPECT_NEAR(got.value[3], std::log1p(std::exp(0.625)), 1e-12) << "h = -0.625";
  EXPECT_GT(got.slope[1], 0);
  EXPECT_LT(got.slope[3], 0);
}

TEST(PairObjective, TheWeightMultipliesValueAndSlopeAndNoMetric) {
  OnePair plain, weighted;
  weighted.weight = {0, 2, 2, 2, 2, 2};
  const offpolicy::Objective one = plain.Compute({}), two = weighted.Compute({});
  EXPECT_NEAR(two.value[1], 2 * one.value[1], 1e-12);
  for (size_t t = 1; t < 6; ++t) EXPECT_NEAR(two.slope[t], 2 * one.slope[t], 1e-12);
  EXPECT_EQ(weighted.numbers.loss, plain.numbers.loss);
}

TEST(PairObjective, SlopesAreTheDerivativesOfTheValueForEveryLoss) {
  using Kind = PreferenceLossKind;
  for (const Kind kind : {Kind::kDpo, Kind::kDpoNorm, Kind::kIpo, Kind::kRobust, Kind::kExo,
                          Kind::kApoZero, Kind::kApoDown, Kind::kCpo, Kind::kSimpo}) {
    PreferenceLossOptions options = {.kind = kind};
    if (kind == Kind::kExo) options.label_smoothing = 0.1;
    if (kind == Kind::kDpo) options.rpo_alpha = 0.3;
    options.ld_alpha = 0.5;
    OnePair pair;
    pair.weight = {0, 1.5, 1.5, 1.5, 1.5, 1.5};
    const auto value = [&](const std::vector<double>& at) {
      double sum = 0;
      for (const double v : pair.Compute(options, at).value) sum += v;
      return sum;
    };
    const std::vector<double> slope = pair.Compute(options).slope;
    for (size_t t = 1; t < 6; ++t) {
      EXPECT_NEAR(slope[t], CentralDifference(value, pair.target, t), 1e-7)
          << static_cast<int>(kind) << " token " << t;
    }
  }
}

// Of two pairs, one token of the second has a behaviour log-prob that is not a number.
Microbatch TwoPairs(const std::vector<float>& behaviour) {
  Microbatch micro;
  micro.loss_mask = {0, 1, 1, 1, 1, 1};
  micro.completion = {-1, 0, 1, 2, 2, 3};
  micro.advantages = {0, 1, -1, 1, 1, -1};
  micro.behaviour_logprobs = behaviour;
  micro.weight_versions = {0, 4, 5, 5, 5, 5};
  micro.num_completions = 4;
  return micro;
}

offpolicy::Correction Corrected(const Microbatch& micro,
                                const offpolicy::CorrectionOptions& options) {
  const at::Tensor proximal = ToFloatTensor(std::vector<double>(6, -1));
  offpolicy::Correction correction = CorrectMicrobatch(micro, proximal, options, 2).value();
  DropBrokenPairs(micro, correction);
  return correction;
}

constexpr offpolicy::CorrectionOptions kProduct = {.kind = offpolicy::CorrectionKind::kSequenceTis,
                                                   .max_weight = 3};

// e^0.5 e^0.25 of the first pair; e^2 of the second, truncated at 3.
TEST(PairCorrection, IsTheProductOfTheRatiosOfBothCompletionsTruncated) {
  const Microbatch micro = TwoPairs({0, -1.5f, -1.25f, -2, -1, -2});
  const offpolicy::Correction got = Corrected(micro, kProduct);
  for (const size_t t : {1, 2}) EXPECT_NEAR(got.weight[t], std::exp(0.75), 1e-9);
  for (const size_t t : {3, 4, 5}) EXPECT_EQ(got.weight[t], 3);
  EXPECT_EQ(got.num_weights, 2) << "pairs, not completions";
  PairWeights numbers;
  AddPairWeights(got, micro, {.value = 6}, numbers);
  EXPECT_EQ(numbers.num_pairs, 2);
  EXPECT_EQ(numbers.num_kept, 2);
  EXPECT_EQ(numbers.num_bounded, 1);
  EXPECT_NEAR(numbers.weight_sum, 3 + std::exp(0.75), 1e-9);
  EXPECT_EQ(numbers.num_mixed, 1) << "versions 4 and 5";
  EXPECT_EQ(numbers.num_stale, 2);
  EXPECT_EQ(numbers.staleness_sum, 3);
  EXPECT_EQ(numbers.staleness_max, 2);
}

TEST(PairCorrection, DropsAPairOfWhichATokenIsNotKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Microbatch micro = TwoPairs({0, -1.5f, -1.25f, nan, -1, -2});
  const offpolicy::Correction got = Corrected(micro, kProduct);
  EXPECT_THAT(got.kept, ElementsAre(0, 1, 1, 0, 0, 0));
  EXPECT_EQ(got.num_rejected, 3);
  EXPECT_EQ(got.num_nonfinite, 1);
  EXPECT_EQ(got.num_weights, 1);
  EXPECT_NEAR(got.weight_sum, std::exp(0.75), 1e-9);
  EXPECT_EQ(PairScales(got.kept, micro.completion).denominator, 1);
  EXPECT_EQ(PairScales(micro.loss_mask, micro.completion).denominator, 2);
  PairWeights numbers;
  AddPairWeights(got, micro, {.value = 5}, numbers);
  EXPECT_EQ(numbers.num_pairs, 2);
  EXPECT_EQ(numbers.num_kept, 1);
}

TEST(CheckPairs, RefusesWhatIsNotOneChosenAndOneRejectedCompletion) {
  ExperienceBatch batch;
  Microbatch& micro = batch.microbatches.emplace_back();
  micro.advantages = {0, 1, -1};
  micro.loss_mask = {0, 1, 1};
  batch.completions = {{.group = 0, .begin = 1, .end = 2}, {.group = 0, .begin = 2, .end = 3}};
  EXPECT_THAT(CheckPairs(batch), IsOk());
  micro.advantages = {0, 1, 1};
  EXPECT_THAT(CheckPairs(batch), FailsWith(absl::StatusCode::kInvalidArgument,
                                           "group 0 of the batch is no pair: it has 2 trained"));
}

TEST(CheckPairs, LooksAtTheTokensThatWereDrawn) {
  ExperienceBatch batch;
  Microbatch& micro = batch.microbatches.emplace_back();
  micro.advantages = {0, 1, 0, 1, -1, 0, -1};
  micro.loss_mask = {0, 1, 0, 1, 1, 0, 1};  // an environment gave one token between two turns
  batch.completions = {{.group = 0, .begin = 1, .end = 4}, {.group = 0, .begin = 4, .end = 7}};
  EXPECT_THAT(CheckPairs(batch), IsOk());
  micro.advantages[6] = 1;
  EXPECT_THAT(CheckPairs(batch), FailsWith(absl::StatusCode::kInvalidArgument,
                                           "and 0 with advantages below, in 1 rows"));
}

// The preference loss of an ordered pair of sequences of the toy policy as a gradient by its logits,
// times `weight`. Log-probs of the reference are half of the policy's.
testing::Gradient PairGradient(const ToySequence& chosen, const ToySequence& rejected,
                               double weight) {
  OnePair pair;
  pair.target.clear();
  for (const ToySequence* s : {&chosen, &rejected}) {
    pair.target.insert(pair.target.end(), s->log_pi.begin(), s->log_pi.end());
  }
  const size_t n = chosen.log_pi.size();
  pair.reference = pair.target;
  for (double& x : pair.reference) x /= 2;
  pair.weight.assign(2 * n, weight);
  pair.kept.assign(2 * n, 1);
  pair.advantages.assign(2 * n, -1);
  std::fill_n(pair.advantages.begin(), n, 1);
  pair.completion.assign(2 * n, 1);
  std::fill_n(pair.completion.begin(), n, 0);
  const std::vector<double> slope = pair.Compute({.beta = 1}).slope;
  testing::Gradient gradient(chosen.score[0].size());
  for (size_t t = 0; t < n; ++t) {
    AddTo(gradient, slope[t], chosen.score[t]);
    AddTo(gradient, slope[n + t], rejected.score[t]);
  }
  return gradient;
}

// The weight that the correction library gives the pair.
double WeightOf(const ToySequence& a, const ToySequence& b,
                const offpolicy::CorrectionOptions& options) {
  std::vector<double> pi = a.log_pi, mu = a.log_mu;
  pi.insert(pi.end(), b.log_pi.begin(), b.log_pi.end());
  mu.insert(mu.end(), b.log_mu.begin(), b.log_mu.end());
  const std::vector<uint8_t> mask(pi.size(), 1);
  const std::vector<int64_t> unit(pi.size(), 0);
  return offpolicy::ComputeCorrection(
             {.proximal_logprobs = pi, .behaviour_logprobs = mu, .mask = mask, .completion = unit},
             options)
      ->weight[0];
}

// The expectation of the gradient over all pairs of sequences, drawn from the policy or from the
// behaviour policy; the better one is chosen.
testing::Gradient Expected(const ToyPolicy& policy, bool on_policy,
                           const offpolicy::CorrectionOptions& options) {
  testing::Gradient sum(policy.sequences[0].score[0].size());
  for (const ToySequence& a : policy.sequences) {
    for (const ToySequence& b : policy.sequences) {
      if (a.reward == b.reward) continue;
      const bool first = a.reward > b.reward;
      const double weight = on_policy ? 1 : WeightOf(a, b, options);
      AddTo(sum, on_policy ? a.pi * b.pi : a.mu * b.mu,
            PairGradient(first ? a : b, first ? b : a, weight));
    }
  }
  return sum;
}

TEST(StalePairs, TheWeightedGradientIsThatOfPairsOfThePolicyItselfByEnumeration) {
  const offpolicy::CorrectionOptions product = {.kind = offpolicy::CorrectionKind::kSequenceTis,
                                                .max_weight = 1e9};
  for (const size_t length : {1, 2}) {
    const ToyPolicy policy(3, length, 0.7);
    const testing::Gradient exact = Expected(policy, true, {});
    EXPECT_LT(Distance(Expected(policy, false, product), exact), 1e-12) << length;
    const double off =
        Distance(Expected(policy, false, {.kind = offpolicy::CorrectionKind::kOff}), exact);
    EXPECT_GT(off, 0.01) << length;
  }
}

}  // namespace
}  // namespace tandem::trainer
