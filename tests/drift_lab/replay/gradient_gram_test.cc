#include "drift_lab/replay/gradient_gram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/support/status_matchers.h"
#include "tests/trainer/toy_model.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

// One group of two completions, of 3 and 2 tokens.
offpolicy::Capture TwoCompletions() {
  offpolicy::Capture capture;
  capture.group_id = {1};
  capture.prompt_ids = {4, 5};
  capture.prompt_offsets = {0, 2};
  capture.group = {0, 0};
  capture.token_offsets = {0, 3, 5};
  capture.token_ids = {7, 8, 9, 3, 2};
  capture.packed_support_offsets = std::vector<int64_t>(6);
  capture.manifest.sampling.temperature = 1;
  return capture;
}

const std::vector<GradientRequest> kRequests = {
    {0, {1, 0, 0}}, {0, {0, 1, 0}}, {0, {1, -2, 0}}, {1, {0.5, 0.5}}};

std::unique_ptr<TrainerForward> Forward(const ModelConfig& config) {
  return TrainerForward::Create(config, ToyWeights(config), {.trainable = true}).value();
}

std::vector<float> FullGradient(TrainerForward& forward, const GradientRequest& request) {
  std::vector<float> whole;
  const auto logprobs = forward.Differentiate(
      TwoCompletions(), request.completion, request.direction,
      [&](std::span<const float> part) { whole.insert(whole.end(), part.begin(), part.end()); });
  EXPECT_THAT(logprobs, IsOk());
  return whole;
}

// `error`: of a product, relative to the lengths of both vectors.
void ExpectProductsOfFullGradients(const ModelConfig& config, double error) {
  const auto forward = Forward(config);
  const offpolicy::Capture capture = TwoCompletions();
  const auto gram = ComputeGradientGram(*forward, capture, kRequests, 1, [](int64_t) {});
  ASSERT_THAT(gram, IsOk());
  ASSERT_EQ(gram->size, 4);
  std::vector<std::vector<float>> full;
  for (const GradientRequest& request : kRequests) full.push_back(FullGradient(*forward, request));
  EXPECT_EQ(static_cast<int64_t>(full[0].size()), gram->num_parameters);
  const auto dot = [&](size_t i, size_t j) {
    return std::inner_product(full[i].begin(), full[i].end(), full[j].begin(), 0.0);
  };
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      EXPECT_NEAR(gram->at(i, j), dot(i, j), error * std::sqrt(dot(i, i) * dot(j, j)));
    }
  }
  // The third direction is the first less twice the second, and so is its gradient.
  const double expected = gram->at(0, 0) - 4 * gram->at(0, 1) + 4 * gram->at(1, 1);
  EXPECT_NEAR(gram->at(2, 2), expected, 1e-4 * expected);
}

TEST(GradientGramTest, ProductsOfASmallModelAreExact) {
  EXPECT_LT(Forward(ToyConfig())->num_parameters(), kSketchWidth);
  ExpectProductsOfFullGradients(ToyConfig(), 1e-5);
}

TEST(GradientGramTest, ProductsOfAModelThatIsSketchedAreWithinTheStatedError) {
  ModelConfig config = ToyConfig();
  config.vocab_size = 40000;  // 0.96 million parameters
  ExpectProductsOfFullGradients(config, 5 * std::sqrt(2.0 / kSketchWidth));
}

TEST(GradientGramTest, LogProbsAreThoseOfTheForward) {
  const auto forward = Forward(ToyConfig());
  const offpolicy::Capture capture = TwoCompletions();
  const auto gram = ComputeGradientGram(*forward, capture, {&kRequests[3], 1}, 1, [](int64_t) {});
  ASSERT_THAT(gram, IsOk());
  const auto scores = forward->Score(capture, {}, [](int64_t) {});
  ASSERT_THAT(scores, IsOk());
  EXPECT_TRUE(std::isnan(gram->logprobs[2]));  // no pass over the first completion was asked for
  EXPECT_NEAR(gram->logprobs[3], (*scores)[3], 1e-5);
  EXPECT_NEAR(gram->logprobs[4], (*scores)[4], 1e-5);
}

}  // namespace
}  // namespace tandem::drift
