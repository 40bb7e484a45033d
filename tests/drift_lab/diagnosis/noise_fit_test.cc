#include "drift_lab/diagnosis/noise_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tandem::drift {
namespace {

constexpr int kVocabulary = 60;

std::vector<double> Softmax(const std::vector<double>& logits) {
  double mass = 0;
  std::vector<double> p;
  for (const double z : logits) p.push_back(std::exp(z));
  for (const double x : p) mass += x;
  for (double& x : p) x /= mass;
  return p;
}

// Tokens sampled from softmax(logits + noise), as the definition says: 60 ids, contexts of mixed
// sharpness, completions of 25 tokens.
struct Sample {
  std::vector<double> residual;
  std::vector<float> logprob, squared_probs;
  std::vector<int32_t> sequence;
  std::vector<uint64_t> context;  // each of its own
  std::mt19937 random;

  explicit Sample(unsigned seed) : random(seed) {}

  template <typename NoiseSize>
  void Draw(int num_tokens, const NoiseSize& size) {
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    for (int t = 0; t < num_tokens; ++t) {
      std::vector<double> logits(kVocabulary), noisy;
      const double sharpness = 0.5 + 2.5 * uniform(random), sigma = size(uniform(random));
      for (double& z : logits) z = sharpness * normal(random);
      for (const double z : logits) noisy.push_back(z + sigma * normal(random));
      const std::vector<double> p = Softmax(logits), drawn = Softmax(noisy);
      std::discrete_distribution<int> pick(drawn.begin(), drawn.end());
      const auto a = static_cast<size_t>(pick(random));
      double q = 0;
      for (const double x : p) q += x * x;
      residual.push_back(std::log(p[a]) - std::log(drawn[a]));
      logprob.push_back(static_cast<float>(std::log(p[a])));
      squared_probs.push_back(static_cast<float>(q));
      sequence.push_back(t / 25);
      context.push_back(context.size());
    }
  }
  NoiseInputs inputs() const { return {residual, logprob, squared_probs, sequence, context}; }
};

TEST(NoiseFitTest, FindsTheSizeOfTheNoise) {
  for (const double sigma : {0.02, 0.05, 0.1, 0.2}) {
    Sample sample(7);
    sample.Draw(3000, [&](double) { return sigma; });
    const NoiseFit fit = FitNoise(sample.inputs(), {.replicates = 200});
    EXPECT_TRUE(fit.believed()) << sigma << ": " << fit.distance << " of " << fit.largest_distance;
    EXPECT_FALSE(fit.heavy_tail) << sigma;
    EXPECT_NEAR(fit.sigma.value / sigma, 1, 0.05) << sigma;
    EXPECT_LT(fit.sigma.high / fit.sigma.low, 1.12) << sigma;
  }
}

TEST(NoiseFitTest, IntervalsCoverTheTruthNineteenTimesInTwenty) {
  int covered = 0;
  constexpr int kExperiments = 60;
  for (unsigned i = 0; i < kExperiments; ++i) {
    Sample sample(100 + i);
    sample.Draw(500, [](double) { return 0.08; });
    covered += !FitNoise(sample.inputs(), {.replicates = 200}).sigma.Excludes(0.08);
  }
  EXPECT_GE(covered, 52);  // 57 expected, standard deviation 1.7
}

TEST(NoiseFitTest, TellsATailFromOneNormalAndFindsItsShareAndSize) {
  Sample sample(3);
  sample.Draw(4000, [](double u) { return u < 0.05 ? 0.3 : 0.03; });
  const NoiseFit fit = FitNoise(sample.inputs(), {.replicates = 100});
  EXPECT_TRUE(fit.heavy_tail);
  EXPECT_TRUE(fit.believed()) << fit.distance << " of " << fit.largest_distance;
  EXPECT_NEAR(fit.sigma.value, 0.03, 0.003);
  EXPECT_NEAR(fit.tail_probability.value, 0.05, 0.015);
  EXPECT_NEAR(fit.tail_factor.value, 10, 2.5);
}

// A filter's residual is the log of the retained probability mass, which is never positive. A bias
// is on a twentieth of the ids.
TEST(NoiseFitTest, DoesNotBelieveThatFiltersOrBiasesAreNoise) {
  Sample filtered(5), biased(6);
  filtered.Draw(2000, [](double) { return 0.0; });
  biased.Draw(2000, [](double) { return 0.0; });
  std::uniform_real_distribution<double> uniform;
  for (double& r : filtered.residual) r = std::log(0.9 + 0.1 * uniform(filtered.random));
  for (double& r : biased.residual) r = uniform(biased.random) < 0.05 ? 0.95 : -0.05;
  EXPECT_FALSE(FitNoise(filtered.inputs(), {.replicates = 10}).believed());
  EXPECT_FALSE(FitNoise(biased.inputs(), {.replicates = 10}).believed());
}

// A fault of arithmetic gives the same token after the same ids the same residual, in every
// completion.
TEST(NoiseFitTest, DoesNotBelieveNoiseThatComesAgainInTheSameContext) {
  Sample sample(11);
  sample.Draw(1000, [](double) { return 0.05; });
  EXPECT_TRUE(FitNoise(sample.inputs(), {.replicates = 10}).believed());
  for (size_t t = 0; t < 500; ++t) {
    sample.context[500 + t] = sample.context[t];
    sample.residual[500 + t] = sample.residual[t];
    sample.logprob[500 + t] = sample.logprob[t];
    sample.squared_probs[500 + t] = sample.squared_probs[t];
  }
  const NoiseFit fit = FitNoise(sample.inputs(), {.replicates = 10});
  EXPECT_EQ(fit.repeated, 1);
  EXPECT_FALSE(fit.believed());
}

// An error that grows along the completion, as of rotary angles.
TEST(NoiseFitTest, DoesNotBelieveNoiseThatGrowsWithThePosition) {
  Sample sample(12);
  int drawn = 0;
  sample.Draw(2000, [&](double) { return 0.004 * (1 + drawn++ % 25); });
  const NoiseFit fit = FitNoise(sample.inputs(), {.replicates = 10});
  EXPECT_GT(fit.dependence, 8);
  EXPECT_FALSE(fit.believed());
}

TEST(NoiseFitTest, NoResidualIsNoNoise) {
  Sample sample(9);
  sample.Draw(100, [](double) { return 0.0; });
  for (double& r : sample.residual) r = 0;
  EXPECT_FALSE(FitNoise(sample.inputs()).believed());
}

}  // namespace
}  // namespace tandem::drift
