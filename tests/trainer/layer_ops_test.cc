// Each operation of a layer against finite differences, and attention against its definition.
#include "trainer/layer_ops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "trainer/attention_kernel.h"
#include "trainer/vector_math.h"

namespace tandem::trainer {
namespace {

// Checks `grad` against central differences of f along random directions in `x`. f is a float64 sum
// of float32 results: differences of a step of 1e-2 keep four digits.
void ExpectGradient(const std::function<double()>& f, at::Tensor x, const at::Tensor& grad) {
  for (int seed = 0; seed < 3; ++seed) {
    at::manual_seed(100 + seed);
    const at::Tensor direction = at::randn_like(x);
    const at::Tensor saved = x.clone();
    constexpr double kStep = 1e-2;
    x.copy_(saved + kStep * direction);
    const double above = f();
    x.copy_(saved - kStep * direction);
    const double below = f();
    x.copy_(saved);
    const double expected = (above - below) / (2 * kStep);
    const double got = (grad.to(at::kDouble) * direction.to(at::kDouble)).sum().item<double>();
    EXPECT_NEAR(got, expected, 2e-3 * std::max(1.0, std::abs(expected)));
  }
}

double Weighted(const at::Tensor& y, const at::Tensor& weights) {
  return (y.to(at::kDouble) * weights.to(at::kDouble)).sum().item<double>();
}

at::Tensor Random(at::IntArrayRef shape, int seed) {
  at::manual_seed(seed);
  return at::randn(shape);
}

TEST(LinearTest, GradientsOfInputWeightAndBiasAgreeWithDifferences) {
  LinearLayer layer{Random({7, 5}, 1), Random({7}, 2), at::zeros({7, 5}), at::zeros({7})};
  const at::Tensor x = Random({9, 5}, 3), y_grad = Random({9, 7}, 4);
  const at::Tensor x_grad = LinearBackward(layer, x, y_grad);
  const auto f = [&] { return Weighted(Linear(layer, x), y_grad); };
  ExpectGradient(f, x, x_grad);
  ExpectGradient(f, layer.weight, layer.weight_grad);
  ExpectGradient(f, layer.bias, layer.bias_grad);
}

// 1 + 2^-9 is 1 in bf16, and 3 + 2^-7 is 3. The forward product knows better.
TEST(LinearTest, TheBackwardWeightsDtypeIsThatOfBothBackwardProducts) {
  const at::Tensor weight = at::full({1, 1}, 1 + 0x1p-9f);
  LinearLayer layer{weight, {}, at::zeros({1, 1}), {}, weight.to(at::kBFloat16)};
  const at::Tensor x = at::full({1, 1}, 3 + 0x1p-7f);
  EXPECT_EQ(Linear(layer, x).item<float>(), (1 + 0x1p-9f) * (3 + 0x1p-7f));
  EXPECT_EQ(LinearBackward(layer, x, at::full({1, 1}, 2.0f)).item<float>(), 2.0f);
  EXPECT_EQ(layer.weight_grad.item<float>(), 6.0f);
}

TEST(LinearTest, AddsToTheGradientThatIsThere) {
  LinearLayer layer{Random({3, 2}, 1), {}, at::zeros({3, 2}), {}};
  const at::Tensor x = Random({4, 2}, 2), y_grad = Random({4, 3}, 3);
  LinearBackward(layer, x, y_grad);
  const at::Tensor once = layer.weight_grad.clone();
  LinearBackward(layer, x, y_grad);
  EXPECT_TRUE(at::allclose(layer.weight_grad, once * 2));
}

TEST(LinearTest, Bf16RoundsInputsAndWeightAndSumsInFp32) {
  // 1 + 2^-9 is not a bf16 number: it rounds to 1. 256 + 1 in fp32 sums is 257, which bf16 cannot
  // hold.
  LinearLayer rounding{.weight = at::ones({1, 257}), .round_inputs = true};
  const at::Tensor x = at::full({1, 257}, 1 + 0x1p-9f);
  EXPECT_EQ(Linear(rounding, x).item<float>(), 257.0f);
}

TEST(RmsNormTest, IsWeightTimesXOverItsRootMeanSquare) {
  const NormLayer layer{at::tensor({1.0f, 2.0f}), {}};
  const Normed y = RmsNorm(layer, at::tensor({3.0f, 4.0f}).view({1, 2}), 0.0);
  const float rms = std::sqrt(12.5f);
  EXPECT_FLOAT_EQ(y.value[0][0].item<float>(), 3 / rms);
  EXPECT_FLOAT_EQ(y.value[0][1].item<float>(), 8 / rms);
}

TEST(RmsNormTest, GradientsOfInputAndWeightAgreeWithDifferences) {
  for (const int64_t width : {6, 70}) {  // 70: more than one block of columns
    NormLayer layer{Random({width}, 1), at::zeros({width})};
    const at::Tensor x = Random({5, width}, 2), y_grad = Random({5, width}, 3);
    const Normed y = RmsNorm(layer, x, 1e-5);
    at::Tensor x_grad;
    RmsNormBackward(layer, x, y.rstd, y_grad, x_grad);
    const auto f = [&] { return Weighted(RmsNorm(layer, x, 1e-5).value, y_grad); };
    ExpectGradient(f, x, x_grad);
    ExpectGradient(f, layer.weight, layer.weight_grad);
  }
}

TEST(RotateTest, TurnsPairsByPositionTimesFrequencyAndBackAgain) {
  const std::vector<int32_t> positions = {0, 2};
  const std::vector<float> frequencies = {0.5f};
  const RotaryTable table = MakeRotaryTable(positions, frequencies);
  at::Tensor x = at::tensor({1.0f, 0.0f, 1.0f, 0.0f}).view({2, 2});
  Rotate(x, 1, table, false);
  EXPECT_FLOAT_EQ(x[0][0].item<float>(), 1);
  EXPECT_FLOAT_EQ(x[1][0].item<float>(), std::cos(1.0f));
  EXPECT_FLOAT_EQ(x[1][1].item<float>(), std::sin(1.0f));
  Rotate(x, 1, table, true);
  EXPECT_NEAR(x[1][0].item<float>(), 1, 1e-6);
}

TEST(SwiGluTest, GradientsAgreeWithDifferences) {
  at::Tensor gate = Random({4, 9}, 1), up = Random({4, 9}, 2);
  const at::Tensor out_grad = Random({4, 9}, 3);
  at::Tensor gate_grad = gate.clone(), up_grad = up.clone();
  SwiGluGrad(out_grad, gate_grad, up_grad);
  const auto f = [&] { return Weighted(SwiGluValue(gate, up), out_grad); };
  ExpectGradient(f, gate, gate_grad);
  ExpectGradient(f, up, up_grad);
}

// Two prompts; the first with completions of 1, 60 (more than a block of queries) and 3 tokens.
const std::vector<Segment> kSegments = {{0, 50, 0, 0},     {50, 51, 0, 50},  {51, 111, 0, 50},
                                        {111, 114, 0, 50}, {114, 117, 0, 0}, {117, 121, 114, 117}};
const HeadCounts kHeads = {4, 2, 6};

// Attention as its definition says, in float64.
at::Tensor SlowAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = q.size(0);
  at::Tensor allowed = at::zeros({tokens, tokens}, at::kBool);
  for (const Segment& s : kSegments) {
    for (int64_t i = s.begin; i < s.end; ++i) {
      allowed[i].slice(0, s.prefix_begin, s.prefix_end).fill_(true);
      allowed[i].slice(0, s.begin, i + 1).fill_(true);
    }
  }
  const auto heads = [&](const at::Tensor& x, int64_t count) {
    return x.to(at::kDouble).view({tokens, count, kHeads.head_dim}).transpose(0, 1);
  };
  const int64_t repeat = kHeads.num_heads / kHeads.num_kv_heads;
  const at::Tensor keys = heads(k, kHeads.num_kv_heads).repeat_interleave(repeat, 0);
  const at::Tensor values = heads(v, kHeads.num_kv_heads).repeat_interleave(repeat, 0);
  at::Tensor scores = at::matmul(heads(q, kHeads.num_heads), keys.transpose(1, 2)) /
                      std::sqrt(static_cast<double>(kHeads.head_dim));
  scores = scores.masked_fill(allowed.logical_not(), -INFINITY);
  return at::matmul(at::softmax(scores, -1), values).transpose(0, 1).reshape({tokens, -1});
}

TEST(SegmentAttentionTest, EachTokenSeesItsPromptAndItsOwnPast) {
  const at::Tensor q = Random({121, 24}, 1), k = Random({121, 12}, 2), v = Random({121, 12}, 3);
  const Attention attention = SegmentAttention(q, k, v, kSegments, kHeads);
  const at::Tensor expected = SlowAttention(q, k, v).to(at::kFloat);
  EXPECT_LT((attention.out - expected).abs().max().item<float>(), 2e-6f);
}

TEST(SegmentAttentionTest, GradientsAgreeWithThoseOfTheDefinition) {
  const at::Tensor q = Random({121, 24}, 1), k = Random({121, 12}, 2), v = Random({121, 12}, 3);
  const at::Tensor out_grad = Random({121, 24}, 4);
  const Attention attention = SegmentAttention(q, k, v, kSegments, kHeads);
  const AttentionGrads grads =
      SegmentAttentionBackward(q, k, v, attention, out_grad, kSegments, kHeads);
  const at::Tensor q2 = q.clone().requires_grad_(true), k2 = k.clone().requires_grad_(true),
                   v2 = v.clone().requires_grad_(true);
  (SlowAttention(q2, k2, v2) * out_grad.to(at::kDouble)).sum().backward();
  EXPECT_LT((grads.q - q2.grad()).abs().max().item<float>(), 1e-5f);
  EXPECT_LT((grads.k - k2.grad()).abs().max().item<float>(), 1e-5f);
  EXPECT_LT((grads.v - v2.grad()).abs().max().item<float>(), 1e-5f);
}

TEST(SegmentAttentionTest, GradientsAgreeWithDifferences) {
  const at::Tensor q = Random({121, 24}, 5), k = Random({121, 12}, 6), v = Random({121, 12}, 7);
  const at::Tensor out_grad = Random({121, 24}, 8);
  const Attention attention = SegmentAttention(q, k, v, kSegments, kHeads);
  const AttentionGrads grads =
      SegmentAttentionBackward(q, k, v, attention, out_grad, kSegments, kHeads);
  const auto f = [&] {
    return Weighted(SegmentAttention(q, k, v, kSegments, kHeads).out, out_grad);
  };
  ExpectGradient(f, q, grads.q);
  ExpectGradient(f, k, grads.k);
  ExpectGradient(f, v, grads.v);
}

TEST(SmallMatmulTest, EveryShapeOfTileGivesTheProduct) {
  for (const int64_t m : {1, 5, 13}) {
    for (const int64_t n : {3, 16, 17, 50}) {
      const at::Tensor a = Random({m, 9}, 1), b = Random({9, n}, 2), c = Random({m, n}, 3);
      at::Tensor result = c.clone();
      SmallMatmul(m, n, 9, a.data_ptr<float>(), 9, 1, b.data_ptr<float>(), n,
                  result.data_ptr<float>(), n, true);
      EXPECT_LT((result - (c + at::mm(a, b))).abs().max().item<float>(), 1e-5f) << m << "x" << n;
    }
  }
}

TEST(VectorExpTest, IsWithinTwoUlpOfExpAndNeverInfinite) {
  for (double x = -86; x <= 88; x += 0.0137) {
    const double expected = std::exp(static_cast<double>(static_cast<float>(x)));
    EXPECT_NEAR(VectorExp(static_cast<float>(x)) / expected, 1, 3e-7) << x;
  }
  EXPECT_TRUE(std::isfinite(VectorExp(1000)));
  EXPECT_LT(VectorExp(-1000), 1e-37f);
}

}  // namespace
}  // namespace tandem::trainer
