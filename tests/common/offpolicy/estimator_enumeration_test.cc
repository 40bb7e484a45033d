// The exact expectation and variance of corrections as gradient estimators: every sequence of a toy
// policy is enumerated with its probability under the behaviour policy.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <ostream>
#include <string>

#include "common/offpolicy/correction_method.h"
#include "tests/common/offpolicy/toy_policy.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::AddTo;
using ::tandem::testing::Distance;
using ::tandem::testing::Dot;
using ::tandem::testing::Enumerate;
using ::tandem::testing::EstimateFrom;
using ::tandem::testing::Gradient;
using ::tandem::testing::Moments;
using ::tandem::testing::ToyPolicy;
using ::tandem::testing::ToySequence;

constexpr double kExact = 1e-12;  // rounding of fp64

MethodOptions Method(std::string_view settings) { return ParseMethod(settings).value(); }

double Bias(const ToyPolicy& policy, std::string_view settings) {
  return Distance(Enumerate(policy, Method(settings)).mean, policy.ExactGradient());
}

TEST(EstimatorTest, OnPolicyEveryMethodIsUnbiased) {
  const ToyPolicy policy(3, 2, 0);
  for (const NamedMethod& method : NamedMethods()) {
    EXPECT_LT(Bias(policy, method.settings), kExact) << method.name;
  }
}

TEST(EstimatorTest, SequenceWeightsWithoutABoundAreUnbiasedAtEveryLength) {
  const char* unbounded = "correction.kind=sequence_tis correction.max_weight=1e9";
  for (const size_t length : {1, 2, 3}) {
    EXPECT_LT(Bias(ToyPolicy(3, length, 0.7), unbounded), kExact) << length;
    EXPECT_GT(Bias(ToyPolicy(3, length, 0.7), "correction.kind=off"), 0.01) << length;
  }
  EXPECT_LT(Bias(ToyPolicy(4, 3, 0.7), unbounded), kExact);
}

// With one token there is no prefix whose distribution could be wrong.
TEST(EstimatorTest, TokenWeightsAreUnbiasedForOneTokenAndNotForTwo) {
  const char* unbounded = "correction.kind=token_tis correction.max_weight=1e9";
  EXPECT_LT(Bias(ToyPolicy(4, 1, 0.7), unbounded), kExact);
  EXPECT_GT(Bias(ToyPolicy(3, 2, 0.7), unbounded), 0.01);
}

// A geometric mean is not a density ratio of any distribution, so it is biased as soon as the two
// factors differ.
TEST(EstimatorTest, GeometricWeightsAreUnbiasedForOneTokenAndNotForTwo) {
  const char* unbounded = "correction.kind=geometric_tis correction.max_weight=1e9";
  EXPECT_LT(Bias(ToyPolicy(4, 1, 0.7), unbounded), kExact);
  EXPECT_GT(Bias(ToyPolicy(3, 2, 0.7), unbounded), 0.01);
}

TEST(EstimatorTest, BiasFallsWithTheGap) {
  for (const char* settings : {"correction.kind=off", "correction.kind=token_tis",
                               "correction.mode=bypass loss.kind=vespo"}) {
    EXPECT_LT(Bias(ToyPolicy(3, 2, 0.05), settings), Bias(ToyPolicy(3, 2, 0.4), settings) / 4)
        << settings;
  }
}

// min(W, C) loses exactly the mass above the ceiling; a mask loses all of a sequence outside its
// bounds.
TEST(EstimatorTest, CeilingAndMaskOfSequenceWeightsLoseTheMassOutside) {
  const ToyPolicy policy(3, 2, 0.7);
  Gradient truncated = policy.ExactGradient(), masked = truncated;
  int outside = 0;
  for (const ToySequence& s : policy.sequences) {
    const double ratio = s.pi / s.mu;
    for (const Gradient& score : s.score) {
      AddTo(truncated, -std::max(0.0, s.pi - 1.2 * s.mu) * s.reward, score);
      if (ratio > 1.2 || ratio < 0.5) AddTo(masked, -s.pi * s.reward, score);
    }
    outside += ratio > 1.2 || ratio < 0.5;
  }
  ASSERT_GT(outside, 0);
  EXPECT_LT(Distance(Enumerate(policy, Method("correction.kind=sequence_tis "
                                              "correction.max_weight=1.2"))
                         .mean,
                     truncated),
            kExact);
  EXPECT_LT(
      Distance(Enumerate(policy, Method("correction.kind=sequence_mask "
                                        "correction.min_weight=0.5 correction.max_weight=1.2"))
                   .mean,
               masked),
      kExact);
}

TEST(EstimatorTest, ALowerCeilingTradesVarianceForBias) {
  const ToyPolicy policy(3, 3, 0.7);
  double last_moment = 0, last_mean_weight = 0;
  for (const char* ceiling : {"1", "1.5", "2", "4", "1e9"}) {
    const MethodOptions method =
        Method(std::string("correction.kind=sequence_tis correction.max_weight=") + ceiling);
    const double moment = Enumerate(policy, method).second_moment;
    EXPECT_GT(moment, last_moment) << ceiling;
    last_moment = moment;
    double mean_weight = 0;
    for (const ToySequence& s : policy.sequences) {
      mean_weight += s.mu * std::min(s.pi / s.mu, method.correction.max_weight);
    }
    EXPECT_GT(mean_weight, last_mean_weight);
    EXPECT_LE(mean_weight, 1 + kExact);
    last_mean_weight = mean_weight;
  }
  EXPECT_NEAR(last_mean_weight, 1, kExact) << "only without a ceiling all of the mass is there";
}

TEST(EstimatorTest, ProductWeightsHaveMoreVarianceThanTokenWeights) {
  const ToyPolicy policy(3, 3, 0.7);
  const double product =
      Enumerate(policy, Method("correction.kind=sequence_tis correction.max_weight=1e9")).variance;
  const double token =
      Enumerate(policy, Method("correction.kind=token_tis correction.max_weight=1e9")).variance;
  EXPECT_GT(product, token);
}

// A reward that is the same for all sequences carries no information. Without a correction, it
// pulls towards the behaviour policy: E_mu[grad log pi] = -grad KL(mu || pi). Token weights make it
// 0, prefix by prefix.
TEST(EstimatorTest, AConstantRewardMovesAnUncorrectedPolicyAndNotACorrectedOne) {
  ToyPolicy policy(3, 2, 0.7);
  for (ToySequence& s : policy.sequences) s.reward = 1;
  EXPECT_LT(Dot(policy.ExactGradient(), policy.ExactGradient()), kExact);
  EXPECT_GT(Bias(policy, "correction.kind=off"), 0.05);
  EXPECT_LT(Bias(policy, "correction.kind=token_tis correction.max_weight=1e9"), kExact);
}

// Advantages of +1 and -1 are equally likely and independent of the tokens, so there is nothing to
// learn. A mask that looks at their sign moves the policy nevertheless.
TEST(EstimatorTest, AMaskThatLooksAtTheSignMovesThePolicyWithoutAReward) {
  const ToyPolicy policy(3, 2, 0.7);
  const auto drift = [&](std::string_view settings) {
    Gradient mean(policy.sequences[0].score[0].size());
    for (const ToySequence& s : policy.sequences) {
      for (const double advantage : {1.0, -1.0}) {
        AddTo(mean, s.mu / 2, EstimateFrom(s, advantage, Method(settings)));
      }
    }
    return std::sqrt(Dot(mean, mean));
  };
  const std::string mask =
      "correction.kind=token_mask correction.min_weight=0.7 correction.max_weight=1.5";
  EXPECT_LT(drift(mask), kExact);
  EXPECT_GT(drift(mask + " correction.negative_only=true"), 0.01);
  for (const char* kind : {"topr", "dppo_tv", "clip"}) {
    EXPECT_GT(drift(std::string("correction.mode=bypass loss.kind=") + kind), 0.01) << kind;
  }
  EXPECT_LT(drift("correction.kind=geometric_tis"), kExact);
}

// Batches of two sequences: normalised weights have mean 1 in every batch, whatever was sampled.
TEST(EstimatorTest, NormalisedWeightsHaveMeanOneInEveryBatchAndAreStillBiased) {
  const ToyPolicy policy(3, 1, 0.7);
  const MethodOptions method =
      Method("correction.kind=token_tis correction.max_weight=1e9 correction.batch_normalise=true");
  const std::vector<uint8_t> mask = {1, 1};
  const std::vector<int64_t> completion = {0, 1};
  Gradient mean(policy.sequences[0].score[0].size());
  for (const ToySequence& a : policy.sequences) {
    for (const ToySequence& b : policy.sequences) {
      const std::vector<double> mu = {a.log_mu[0], b.log_mu[0]}, pi = {a.log_pi[0], b.log_pi[0]};
      const std::vector<double> rewards = {a.reward, b.reward};
      const MethodResult r =
          EvaluateMethod({mu, pi, pi, rewards, mask, completion}, method).value();
      EXPECT_NEAR(r.correction.weight[0] + r.correction.weight[1], 2, kExact);
      AddTo(mean, -a.mu * b.mu * r.coefficient[0] / r.denominator, a.score[0]);
      AddTo(mean, -a.mu * b.mu * r.coefficient[1] / r.denominator, b.score[0]);
    }
  }
  EXPECT_GT(Distance(mean, policy.ExactGradient()), 1e-3);
  EXPECT_LT(Bias(policy, "correction.kind=token_tis correction.max_weight=1e9"), kExact);
}

// Six actions, each a sequence of one token; the policy and its reference as logits.
using Logits = std::vector<double>;

std::vector<double> LogSoftmax(const Logits& logits) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  std::vector<double> logs;
  for (const double logit : logits) logs.push_back(logit - std::log(sum));
  return logs;
}

double Kl(const Logits& p, const Logits& q) {
  const std::vector<double> log_p = LogSoftmax(p), log_q = LogSoftmax(q);
  double kl = 0;
  for (size_t a = 0; a < p.size(); ++a) kl += std::exp(log_p[a]) * (log_p[a] - log_q[a]);
  return kl;
}

// By finite differences, which share no code with the estimators.
Gradient Derivative(const Logits& at, const std::function<double(const Logits&)>& f) {
  constexpr double kStep = 1e-5;
  Gradient gradient(at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    Logits up = at, down = at;
    up[i] += kStep;
    down[i] -= kStep;
    gradient[i] = (f(up) - f(down)) / (2 * kStep);
  }
  return gradient;
}

using Estimator = double (*)(double d);
double K1(double d) { return d; }
double K2(double d) { return d * d / 2; }
double K3(double d) { return std::exp(-d) - 1 + d; }

// E[grad log pi (R - beta k)] over the policy's own actions.
Gradient ChargedGradient(const Logits& policy, const Logits& reference,
                         const std::vector<double>& rewards, double beta, Estimator k) {
  const std::vector<double> log_pi = LogSoftmax(policy), log_reference = LogSoftmax(reference);
  Gradient mean(policy.size());
  for (size_t a = 0; a < policy.size(); ++a) {
    Gradient score(policy.size());
    for (size_t b = 0; b < policy.size(); ++b) score[b] = (a == b ? 1 : 0) - std::exp(log_pi[b]);
    const ToySequence drawn = {.log_pi = {log_pi[a]}, .log_mu = {log_pi[a]}, .score = {score}};
    const double charged = rewards[a] - beta * k(log_pi[a] - log_reference[a]);
    AddTo(mean, std::exp(log_pi[a]), EstimateFrom(drawn, charged, Method("correction.kind=off")));
  }
  return mean;
}

Gradient Times(double factor, Gradient x) {
  for (double& value : x) value *= factor;
  return x;
}

const Logits kReference = {0.3, -0.2, 0.5, 0, -0.4, 0.1};
const std::vector<double> kNoReward(6, 0.0);

Logits Moved(double by) {
  Logits logits = kReference;
  const double direction[] = {1, -0.6, 0.2, -1.1, 0.7, 0.4};
  for (size_t a = 0; a < logits.size(); ++a) logits[a] += by * direction[a];
  return logits;
}

// This is why loss.kl_place reward accepts k1 only (trainer/train_step_options.cc).
TEST(EstimatorTest, AChargeOnTheRewardHasTheGradientOfTheReverseKlWithK1) {
  for (const double moved : {0.01, 0.3, 1.0}) {
    const Logits policy = Moved(moved);
    const Gradient reverse =
        Derivative(policy, [](const Logits& logits) { return Kl(logits, kReference); });
    const Gradient charged = ChargedGradient(policy, kReference, kNoReward, 0.5, K1);
    EXPECT_LT(Distance(charged, Times(-0.5, reverse)), 1e-9) << moved;
  }
}

TEST(EstimatorTest, AChargeOnTheRewardWithK2OrK3VanishesWhereThePoliciesAreClose) {
  const auto pull = [](double moved, Estimator k) {
    const Gradient g = ChargedGradient(Moved(moved), kReference, kNoReward, 0.5, k);
    return std::sqrt(Dot(g, g));
  };
  EXPECT_NEAR(pull(0.02, K1) / pull(0.01, K1), 2, 0.1) << "first order in the distance";
  for (const Estimator k : {K2, K3}) {
    EXPECT_NEAR(pull(0.02, k) / pull(0.01, k), 4, 0.2) << "second order";
    EXPECT_LT(pull(0.01, k), 0.02 * pull(0.01, K1));
  }
  // The effect of k3 is the difference of the gradients of both divergences.
  const Logits policy = Moved(1);
  Gradient difference =
      Derivative(policy, [](const Logits& logits) { return Kl(logits, kReference); });
  AddTo(difference, -1,
        Derivative(policy, [](const Logits& logits) { return Kl(kReference, logits); }));
  EXPECT_LT(
      Distance(ChargedGradient(policy, kReference, kNoReward, 0.5, K3), Times(-0.5, difference)),
      1e-9);
}

// The optimum of E[R] - beta KL is reference e^(R / beta) / Z: with a uniform reference, beta 0.5
// and these rewards e^4 / (e^4 + e^2 + 4) = 0.827 for the best action.
TEST(EstimatorTest, ExactAscentEndsAtTheOptimumWithK1AndLeavesTheReferenceBehindWithK3) {
  const Logits uniform(6, 0.0);
  const std::vector<double> rewards = {2, 1, 0, 0, 0, 0};
  const auto best_after = [&](int num_steps, Estimator k) {
    Logits logits = uniform;
    for (int i = 0; i < num_steps; ++i) {
      AddTo(logits, 2, ChargedGradient(logits, uniform, rewards, 0.5, k));
    }
    return std::exp(LogSoftmax(logits)[0]);
  };
  EXPECT_NEAR(best_after(1200, K1), std::exp(4) / (std::exp(4) + std::exp(2) + 4), 1e-6);
  EXPECT_GT(best_after(100, K3), 0.9999);
}

// The factors of both scores that each method gives a sequence of two tokens with weights w[0],
// w[1] and advantage a, computed from its formula alone.
struct Two {
  std::array<double, 2> w, pi, mu;
  double a, product, geometric, k3_mean, k3_max;
};
using Factors = std::array<double, 2>;

struct FormulaCase {
  std::string name;
  std::function<Factors(const Two&)> factors;
};

// GoogleTest would otherwise print bytes of memory as the names of test cases.
void PrintTo(const FormulaCase& c, std::ostream* out) { *out << c.name; }

bool In(double x, double low, double high) { return x >= low && x <= high; }

Factors Both(double factor) { return {factor, factor}; }

Factors Each(const Two& s, const std::function<double(double)>& f) {
  return {f(s.w[0]), f(s.w[1])};
}

double Phi(double w, double k, double lambda) {
  return std::pow(w, k) * std::exp(lambda * (1 - w));
}

Factors Dppo(const Two& s, const std::function<bool(double pi, double mu)>& far) {
  const auto factor = [&](size_t t) {
    const bool its_way = s.a > 0 ? s.pi[t] > s.mu[t] : s.pi[t] < s.mu[t];
    return its_way && far(s.pi[t], s.mu[t]) ? 0 : s.w[t];
  };
  return {factor(0), factor(1)};
}

// (log w)^2 of the tokens on which a clip could act.
struct ActingSquares {
  std::array<bool, 2> acts;
  std::array<double, 2> squares;
};

ActingSquares SquaresOf(const Two& s) {
  ActingSquares of;
  for (const size_t t : {0, 1}) {
    of.acts[t] = (s.w[t] - 1) * s.a > 0;
    of.squares[t] = std::pow(std::log(s.w[t]), 2);
  }
  return of;
}

// The squares are kept while their mean, over tokens on which a clip could act, is at most 0.04.
Factors M2po(const Two& s) {
  const auto [acts, squares] = SquaresOf(s);
  Factors factors = s.w;
  const bool both = acts[0] && acts[1];
  if (both && (squares[0] + squares[1]) / 2 <= 0.04) return factors;
  const size_t larger = squares[1] > squares[0];
  for (const size_t t : {0, 1}) {
    if (acts[t] && (squares[t] > 0.04 || (both && t == larger))) factors[t] = 0;
  }
  return factors;
}

// Where a clip could act, log w is clipped at the tau at which the mean of min((log w)^2, tau^2) is
// 0.04; clipped tokens have no slope.
Factors M2poClip(const Two& s) {
  const auto [acts, squares] = SquaresOf(s);
  double tau_squared = 0.04;
  if (acts[0] && acts[1]) {
    tau_squared = std::max(0.04, 0.08 - std::min(squares[0], squares[1]));
  }
  Factors factors = s.w;
  for (const size_t t : {0, 1}) {
    if (acts[t] && squares[t] > tau_squared) factors[t] = 0;
  }
  return factors;
}

double KlOfBernoulli(double p, double q) {
  return p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q));
}

double Clipped(double w, double a) {
  if (a > 0) return w > 1.2 ? 0 : w;
  return w < 0.8 ? 0 : w;
}

Two WithWeights(const ToySequence& s) {
  Two two = {.a = s.reward, .product = s.pi / s.mu};
  for (const size_t t : {0, 1}) {
    two.pi[t] = std::exp(s.log_pi[t]);
    two.mu[t] = std::exp(s.log_mu[t]);
    two.w[t] = two.pi[t] / two.mu[t];
  }
  const auto k3 = [](double w) { return w - 1 - std::log(w); };
  two.geometric = std::sqrt(two.product);
  two.k3_mean = (k3(two.w[0]) + k3(two.w[1])) / 2;
  two.k3_max = std::max(k3(two.w[0]), k3(two.w[1]));
  return two;
}

class FormulaTest : public ::testing::TestWithParam<FormulaCase> {};

// Gaps at which wide and narrow thresholds accept some sequences and reject others.
TEST_P(FormulaTest, ExpectationAndVarianceAreThoseOfTheFormula) {
  const MethodOptions method = FindMethod(GetParam().name).value();
  double largest = 0;
  for (const double gap : {1.0, 0.1, 0.003}) {
    const ToyPolicy policy(4, 2, gap);
    Gradient mean(policy.sequences[0].score[0].size());
    double second_moment = 0;
    for (const ToySequence& s : policy.sequences) {
      const Factors factors = GetParam().factors(WithWeights(s));
      Gradient estimate(mean.size());
      for (const size_t t : {0, 1}) AddTo(estimate, factors[t] * s.reward, s.score[t]);
      AddTo(mean, s.mu, estimate);
      second_moment += s.mu * Dot(estimate, estimate);
    }
    const Moments got = Enumerate(policy, method);
    EXPECT_LT(Distance(got.mean, mean), kExact);
    EXPECT_NEAR(got.second_moment, second_moment, kExact);
    EXPECT_NEAR(got.variance, second_moment - Dot(mean, mean), kExact);
    largest = std::max(largest, second_moment);
  }
  EXPECT_GT(largest, 0) << "the thresholds let nothing through";
}

double Tis(double w) { return std::min(w, 2.0); }
double IcePop(double w) { return In(w, 0.5, 5) ? w : 0; }

// clang-format off
INSTANTIATE_TEST_SUITE_P(Table, FormulaTest, ::testing::Values(
    FormulaCase{"off",          [](const Two&) { return Both(1); }},
    FormulaCase{"tis",          [](const Two& s) { return Each(s, Tis); }},
    FormulaCase{"icepop",       [](const Two& s) { return Each(s, IcePop); }},
    FormulaCase{"token_clip",   [](const Two& s) { return Each(s, [](double w) { return std::clamp(w, 0.5, 5.0); }); }},
    FormulaCase{"seq_tis",      [](const Two& s) { return Both(Tis(s.product)); }},
    FormulaCase{"mis",          [](const Two& s) { return Both(In(s.product, 0.5, 2) ? s.product : 0); }},
    FormulaCase{"seq_clip",     [](const Two& s) { return Both(std::clamp(s.product, 0.5, 2.0)); }},
    FormulaCase{"geo_tis",      [](const Two& s) { return Both(Tis(s.geometric)); }},
    FormulaCase{"geo_mask",     [](const Two& s) { return Both(In(s.geometric, 0.5, 2) ? s.geometric : 0); }},
    FormulaCase{"geo_clip",     [](const Two& s) { return Both(std::clamp(s.geometric, 0.5, 2.0)); }},
    FormulaCase{"geo_gate",     [](const Two& s) { return Both(In(s.geometric, 0.999, 1.001)); }},
    FormulaCase{"geo_gate_tis", [](const Two& s) { return In(s.geometric, 0.999, 1.002) ? Each(s, Tis) : Both(0); }},
    FormulaCase{"z_gate",       [](const Two& s) { return std::abs(std::log(s.geometric) + 0.5e-4) > 0.03 / std::sqrt(2) ? Both(0) : Each(s, Tis); }},
    FormulaCase{"k3_gate",      [](const Two& s) { return Both(s.k3_mean <= 0.01); }},
    FormulaCase{"trm",          [](const Two& s) { return Both(s.k3_max <= 0.05 && s.k3_mean <= 0.001); }},
    FormulaCase{"veto",         [](const Two& s) { return std::min(s.w[0], s.w[1]) < 1e-4 ? Both(0) : Each(s, Tis); }},
    FormulaCase{"negative_geo_gate", [](const Two& s) { return Both(s.a >= 0 || s.geometric >= 0.6065); }},
    FormulaCase{"negative_icepop", [](const Two& s) { return Each(s, [&](double w) { return s.a >= 0 ? std::min(w, 5.0) : IcePop(w); }); }},
    FormulaCase{"bypass",       [](const Two& s) { return Each(s, [&](double w) { return Clipped(w, s.a); }); }},
    FormulaCase{"aipo",         [](const Two& s) { return Each(s, Tis); }},
    FormulaCase{"cispo",        [](const Two& s) { return Each(s, Tis); }},  // on the first update r = 1
    FormulaCase{"topr",         [](const Two& s) { return Both(s.a >= 0 ? 1 : std::min(s.product, 1.0)); }},
    FormulaCase{"gspo",         [](const Two& s) { return Both((Tis(s.w[0]) + Tis(s.w[1])) / 2); }},
    FormulaCase{"sapo",         [](const Two& s) { return Each(s, Tis); }},
    FormulaCase{"vespo",        [](const Two& s) { return Both(s.a >= 0 ? Phi(s.product, 2, 3) : Phi(s.product, 3, 2)); }},
    FormulaCase{"m2po",         M2po},
    FormulaCase{"m2po_clip",    M2poClip},
    FormulaCase{"dppo_tv",      [](const Two& s) { return Dppo(s, [](double p, double m) { return std::abs(p - m) > 0.15; }); }},
    FormulaCase{"dppo_kl",      [](const Two& s) { return Dppo(s, [](double p, double m) { return KlOfBernoulli(m, p) > 0.05; }); }}),
    [](const auto& info) { return info.param.name; });
// clang-format on

}  // namespace
}  // namespace tandem::offpolicy
