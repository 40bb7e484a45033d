#include "trainer/policy/chunked_logprobs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "common/model/token_support.h"
#include "tests/trainer/test_devices.h"
#include "trainer/policy/cpu/cpu_layer_ops.h"
#include "trainer/policy/cuda/device_layer_ops.h"

namespace tandem::trainer {
namespace {

std::unique_ptr<LayerOps> OpsOf(Device device) {
  if (device == Device::kCpu) return std::make_unique<CpuLayerOps>();
  return MakeDeviceLayerOps(ComputeDType::kFp32).value();
}

constexpr int64_t kVocabulary = 1500;        // more than one block of the sum
constexpr int64_t kKeepAll = 1'000'000'000;  // logits

struct Case {
  at::Tensor hidden, head;
  std::vector<int64_t> tokens;
};

Case MakeCase(int64_t rows, double spread, const LayerOps& ops) {
  at::manual_seed(5);
  Case c{at::randn({rows, 8}), at::randn({kVocabulary, 8}) * spread, {}};
  c.hidden = c.hidden.to(ops.device());
  c.head = c.head.to(ops.device());
  for (int64_t r = 0; r < rows; ++r) c.tokens.push_back((r * 37) % kVocabulary);
  return c;
}

at::Tensor ExactLogprobs(const Case& c, double temperature, const at::Tensor& logits) {
  const at::Tensor index = at::tensor(c.tokens, at::kLong).unsqueeze(1).to(logits.device());
  return at::log_softmax(logits.to(at::kDouble) / temperature, -1).gather(1, index).squeeze(1);
}

class ChunkedLogprobsTest : public ::testing::TestWithParam<Device> {
 protected:
  at::Tensor There(const at::Tensor& x) const { return x.to(ops_->device()); }

  const std::unique_ptr<LayerOps> ops_ = OpsOf(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Devices, ChunkedLogprobsTest, ::testing::ValuesIn(testing::TestDevices()),
                         [](const auto& test) { return testing::NameOf(test.param); });

TEST_P(ChunkedLogprobsTest, Bug32LogSoftmaxIsNotIn16Bits) {
  at::manual_seed(1);
  // A head of one column makes the logits whatever we want.
  const at::Tensor row = There(at::randn({49152}) * 3);
  const at::Tensor hidden = There(at::ones({1, 1}));
  const ChosenLogprobs got =
      ChosenTokenLogprobs(*ops_, hidden, {.weight = row.view({49152, 1})}, {7}, 1, 0);
  const at::Tensor logprobs = at::log_softmax(row.to(at::kDouble), 0);
  EXPECT_NEAR(got.logprobs[0].item<double>(), logprobs[7].item<double>(), 2e-6);
  EXPECT_NEAR(got.entropies[0].item<double>(), -(logprobs.exp() * logprobs).sum().item<double>(),
              1e-5);
}

TEST_P(ChunkedLogprobsTest, ChunksAndKeptLogitsGiveTheSameNumbers) {
  // Several chunks, the last one not full.
  const int64_t rows = 2 * ops_->logit_chunk_rows() + 88;
  const Case c = MakeCase(rows, 1, *ops_);
  const ChosenLogprobs chunked = ChosenTokenLogprobs(*ops_, c.hidden, {.weight = c.head}, c.tokens,
                                                     0.7, rows * kVocabulary - 1);
  EXPECT_FALSE(chunked.kept_logits.defined());
  const at::Tensor expected = ExactLogprobs(c, 0.7, at::mm(c.hidden, c.head.t()));
  EXPECT_LT((chunked.logprobs - expected).abs().max().item<double>(), 2e-5);
  const ChosenLogprobs kept =
      ChosenTokenLogprobs(*ops_, c.hidden.slice(0, 0, 100).contiguous(), {.weight = c.head},
                          {c.tokens.begin(), c.tokens.begin() + 100}, 0.7, 100 * kVocabulary);
  EXPECT_TRUE(kept.kept_logits.defined());
  EXPECT_LT((kept.logprobs - expected.slice(0, 0, 100)).abs().max().item<double>(), 2e-5);
}

TEST_P(ChunkedLogprobsTest, AUniformHeadHasEntropyLogVAndLogprobMinusLogV) {
  const at::Tensor hidden = There(at::ones({2, 8})), head = There(at::ones({kVocabulary, 8}));
  const ChosenLogprobs result =
      ChosenTokenLogprobs(*ops_, hidden, {.weight = head}, {0, 7}, 1.0, 0);
  EXPECT_NEAR(result.logprobs[1].item<double>(), -std::log(1500.0), 1e-6);
  EXPECT_NEAR(result.entropies[0].item<double>(), std::log(1500.0), 1e-5);
}

class ChunkedLogprobsGradientTest : public ::testing::TestWithParam<std::tuple<Device, double>> {
 protected:
  const std::unique_ptr<LayerOps> ops_ = OpsOf(std::get<0>(GetParam()));
  const int64_t rows_ =  // in chunks
      static_cast<int64_t>(std::get<1>(GetParam()) * static_cast<double>(ops_->logit_chunk_rows()));
};

TEST_P(ChunkedLogprobsGradientTest, AgreesWithAutogradInDoublePrecision) {
  const Case c = MakeCase(rows_, 0.5, *ops_);
  at::manual_seed(9);
  const at::Tensor upstream = at::randn({rows_}).to(ops_->device());
  const at::Tensor head_grad = at::zeros_like(c.head);
  const LinearLayer layer{.weight = c.head, .weight_grad = head_grad};
  ChosenLogprobs result = ChosenTokenLogprobs(*ops_, c.hidden, layer, c.tokens, 0.7, kKeepAll);
  const at::Tensor hidden_grad =
      ChosenTokenLogprobsBackward(*ops_, c.hidden, layer, c.tokens, 0.7, result, upstream);
  const at::Tensor hidden = c.hidden.to(at::kDouble).requires_grad_(true);
  const at::Tensor head = c.head.to(at::kDouble).requires_grad_(true);
  (ExactLogprobs(c, 0.7, at::mm(hidden, head.t())) * upstream).sum().backward();
  EXPECT_LT((hidden_grad - hidden.grad()).abs().max().item<double>(), 1e-4);
  EXPECT_LT((head_grad - head.grad()).abs().max().item<double>(), 1e-4);
}

TEST_P(ChunkedLogprobsTest, ASupportRenormalisesAndOnlyItsLogitsGetAGradient) {
  // A head of one column makes the logits 0, ln 2, ln 3, ln 4; over {1, 3} they are 1/3 and 2/3.
  const at::Tensor weight = There(at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).log().view({4, 1}));
  const at::Tensor head_grad = There(at::zeros({4, 1}));
  const LinearLayer head{.weight = weight, .weight_grad = head_grad};
  const at::Tensor hidden = There(at::ones({2, 1}));
  const std::vector<int32_t> ids = {1, 3};
  const std::vector<SupportView> support = {ids, SupportView()};  // the second row has none
  ChosenLogprobs result = ChosenTokenLogprobs(*ops_, hidden, head, {3, 3}, 1, kKeepAll, support);
  EXPECT_NEAR(result.logprobs[0].item<double>(), std::log(2.0 / 3), 1e-6);
  EXPECT_NEAR(result.logprobs[1].item<double>(), std::log(0.4), 1e-6);
  EXPECT_NEAR(result.entropies[0].item<double>(), std::log(3.0) / 3 + 2 * std::log(1.5) / 3, 1e-6);
  ChosenTokenLogprobsBackward(*ops_, hidden, head, {3, 3}, 1, result,
                              There(at::tensor({1.0f, 0.0f})), support);
  // d log p(3) / d logit: -1/3 at id 1, 1 - 2/3 at id 3, nothing elsewhere.
  EXPECT_NEAR(head_grad[0].item<double>(), 0, 1e-7);
  EXPECT_NEAR(head_grad[1].item<double>(), -1.0 / 3, 1e-6);
  EXPECT_NEAR(head_grad[2].item<double>(), 0, 1e-7);
  EXPECT_NEAR(head_grad[3].item<double>(), 1.0 / 3, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(KeptAndChunked, ChunkedLogprobsGradientTest,
                         ::testing::Combine(::testing::ValuesIn(testing::TestDevices()),
                                            ::testing::Values(0.02, 2.3)));

}  // namespace
}  // namespace tandem::trainer
