// Each operation of a layer against finite differences, and attention against its definition: the
// CPU's and those of a device.
#include "trainer/policy/layer_ops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/test_devices.h"
#include "trainer/policy/cpu/attention_kernel.h"
#include "trainer/policy/cpu/cpu_layer_ops.h"
#include "trainer/policy/cpu/vector_math.h"
#include "trainer/policy/cuda/device_layer_ops.h"

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

class LayerOpsTest : public ::testing::TestWithParam<Device> {
 protected:
  LayerOpsTest() {
    if (GetParam() == Device::kCpu) {
      ops_ = std::make_unique<CpuLayerOps>();
    } else {
      ops_ = MakeDeviceLayerOps(ComputeDType::kFp32).value();
    }
  }

  at::Tensor Random(at::IntArrayRef shape, int seed) const {
    at::manual_seed(seed);
    return at::randn(shape).to(ops_->device());
  }
  at::Tensor Zeros(at::IntArrayRef shape) const { return at::zeros(shape).to(ops_->device()); }
  at::Tensor Of(std::vector<float> values) const { return at::tensor(values).to(ops_->device()); }

  std::unique_ptr<LayerOps> ops_;
};
INSTANTIATE_TEST_SUITE_P(Devices, LayerOpsTest, ::testing::ValuesIn(testing::TestDevices()),
                         [](const auto& test) { return testing::NameOf(test.param); });

double Weighted(const at::Tensor& y, const at::Tensor& weights) {
  return (y.to(at::kDouble) * weights.to(at::kDouble)).sum().item<double>();
}

TEST_P(LayerOpsTest, LinearGradientsOfInputWeightAndBiasAgreeWithDifferences) {
  LinearLayer layer{Random({7, 5}, 1), Random({7}, 2), Zeros({7, 5}), Zeros({7})};
  const at::Tensor x = Random({9, 5}, 3), y_grad = Random({9, 7}, 4);
  const at::Tensor x_grad = ops_->LinearBackward(layer, x, y_grad);
  const auto f = [&] { return Weighted(ops_->Linear(layer, x), y_grad); };
  ExpectGradient(f, x, x_grad);
  ExpectGradient(f, layer.weight, layer.weight_grad);
  ExpectGradient(f, layer.bias, layer.bias_grad);
}

// 1 + 2^-9 is 1 in bf16, and 3 + 2^-7 is 3. The forward product knows better.
TEST(CpuLayerOpsTest, TheBackwardWeightsDtypeIsThatOfBothBackwardProducts) {
  const at::Tensor weight = at::full({1, 1}, 1 + 0x1p-9f);
  LinearLayer layer{weight, {}, at::zeros({1, 1}), {}, weight.to(at::kBFloat16)};
  const at::Tensor x = at::full({1, 1}, 3 + 0x1p-7f);
  EXPECT_EQ(CpuLayerOps().Linear(layer, x).item<float>(), (1 + 0x1p-9f) * (3 + 0x1p-7f));
  EXPECT_EQ(CpuLayerOps().LinearBackward(layer, x, at::full({1, 1}, 2.0f)).item<float>(), 2.0f);
  EXPECT_EQ(layer.weight_grad.item<float>(), 6.0f);
}

TEST_P(LayerOpsTest, LinearAddsToTheGradientThatIsThere) {
  LinearLayer layer{Random({3, 2}, 1), {}, Zeros({3, 2}), {}};
  const at::Tensor x = Random({4, 2}, 2), y_grad = Random({4, 3}, 3);
  ops_->LinearBackward(layer, x, y_grad);
  const at::Tensor once = layer.weight_grad.clone();
  ops_->LinearBackward(layer, x, y_grad);
  EXPECT_TRUE(at::allclose(layer.weight_grad, once * 2));
}

TEST(CpuLayerOpsTest, Bf16RoundsInputsAndWeightAndSumsInFp32) {
  // 1 + 2^-9 is not a bf16 number: it rounds to 1. 256 + 1 in fp32 sums is 257, which bf16 cannot
  // hold.
  LinearLayer rounding{.weight = at::ones({1, 257}), .round_inputs = true};
  const at::Tensor x = at::full({1, 257}, 1 + 0x1p-9f);
  EXPECT_EQ(CpuLayerOps().Linear(rounding, x).item<float>(), 257.0f);
}

TEST_P(LayerOpsTest, RmsNormIsWeightTimesXOverItsRootMeanSquare) {
  const NormLayer layer{Of({1.0f, 2.0f}), {}};
  const Normed y = ops_->RmsNorm(layer, Of({3.0f, 4.0f}).view({1, 2}), 0.0);
  const float rms = std::sqrt(12.5f);
  EXPECT_FLOAT_EQ(y.value[0][0].item<float>(), 3 / rms);
  EXPECT_FLOAT_EQ(y.value[0][1].item<float>(), 8 / rms);
}

TEST_P(LayerOpsTest, RmsNormGradientsOfInputAndWeightAgreeWithDifferences) {
  for (const int64_t width : {6, 70}) {  // 70: more than one block of columns
    NormLayer layer{Random({width}, 1), Zeros({width})};
    const at::Tensor x = Random({5, width}, 2), y_grad = Random({5, width}, 3);
    const Normed y = ops_->RmsNorm(layer, x, 1e-5);
    at::Tensor x_grad;
    ops_->RmsNormBackward(layer, x, y.rstd, y_grad, x_grad);
    const auto f = [&] { return Weighted(ops_->RmsNorm(layer, x, 1e-5).value, y_grad); };
    ExpectGradient(f, x, x_grad);
    ExpectGradient(f, layer.weight, layer.weight_grad);
  }
}

TEST_P(LayerOpsTest, RotateTurnsPairsByPositionTimesFrequencyAndBackAgain) {
  const std::vector<int32_t> positions = {0, 2};
  const RotaryTable table = ops_->MakeRotaryTable(positions, {{0.5f}, 1}, /*interleaved=*/false);
  at::Tensor x = Of({1.0f, 0.0f, 1.0f, 0.0f}).view({2, 2});
  ops_->Rotate(x, 1, table, false);
  EXPECT_FLOAT_EQ(x[0][0].item<float>(), 1);
  EXPECT_FLOAT_EQ(x[1][0].item<float>(), std::cos(1.0f));
  EXPECT_FLOAT_EQ(x[1][1].item<float>(), std::sin(1.0f));
  ops_->Rotate(x, 1, table, true);
  EXPECT_NEAR(x[1][0].item<float>(), 1, 1e-6);
}

TEST_P(LayerOpsTest, RotateTurnsNeighboursInAPartOfTheHeadAndScalesBoth) {
  const std::vector<int32_t> positions = {2};
  const RotaryTable table = ops_->MakeRotaryTable(positions, {{0.5f}, 3}, /*interleaved=*/true);
  at::Tensor x = Of({1.0f, 0.0f, 7.0f, 8.0f}).view({1, 4});
  ops_->Rotate(x, 1, table, false);
  EXPECT_FLOAT_EQ(x[0][0].item<float>(), 3 * std::cos(1.0f));
  EXPECT_FLOAT_EQ(x[0][1].item<float>(), 3 * std::sin(1.0f));
  EXPECT_EQ(x[0][2].item<float>(), 7);
  EXPECT_EQ(x[0][3].item<float>(), 8);
  // The transpose: 9 times the start, since both ways scale by 3.
  ops_->Rotate(x, 1, table, true);
  EXPECT_NEAR(x[0][0].item<float>(), 9, 1e-5);
  EXPECT_NEAR(x[0][1].item<float>(), 0, 1e-5);
}

TEST_P(LayerOpsTest, GatedUnitGradientsAgreeWithDifferences) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    at::Tensor gate = Random({4, 9}, 1), up = Random({4, 9}, 2);
    const at::Tensor out_grad = Random({4, 9}, 3);
    at::Tensor gate_grad = gate.clone(), up_grad = up.clone();
    ops_->GatedUnitBackward(activation, out_grad, gate_grad, up_grad);
    const auto f = [&] { return Weighted(ops_->GatedUnit(activation, gate, up), out_grad); };
    ExpectGradient(f, gate, gate_grad);
    ExpectGradient(f, up, up_grad);
  }
}

TEST_P(LayerOpsTest, SoftCapIsTheCapTimesTheTanhOfTheShare) {
  at::Tensor x = Of({3.0f, -6.0f, 0.0f});
  ops_->SoftCap(x, 3);
  EXPECT_NEAR(x[0].item<float>(), 2.2847825, 1e-6);   // 3 tanh 1
  EXPECT_NEAR(x[1].item<float>(), -2.8920827, 1e-6);  // 3 tanh -2
  EXPECT_EQ(x[2].item<float>(), 0);
}

// Two prompts; the first with completions of 1, 60 (more than a block of queries) and 3 tokens.
const std::vector<Segment> kSegments = {{0, 50, 0, 0},     {50, 51, 0, 50},  {51, 111, 0, 50},
                                        {111, 114, 0, 50}, {114, 117, 0, 0}, {117, 121, 114, 117}};
// Scores as most models have them, and under windows and soft caps. A window of 20 ends within the
// prompt for some queries and within the own segment for others.
const AttentionForm kHeads = {4, 2, 6, 1 / std::sqrt(6.0f)};
const std::vector<AttentionForm> kForms = {kHeads,
                                           {4, 2, 6, 0.3f, 20},
                                           {4, 2, 6, 0.7f, 1},
                                           {4, 2, 6, 0.5f, 0, 1.5f},
                                           {4, 2, 6, 0.5f, 33, 0.8f}};

// Attention as its definition says, in float64.
at::Tensor SlowAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionForm& of = kHeads) {
  const int64_t tokens = q.size(0);
  at::Tensor allowed = at::zeros({tokens, tokens}, q.options().dtype(at::kBool));
  for (const Segment& s : kSegments) {
    for (int64_t i = s.begin; i < s.end; ++i) {
      const int64_t prefix = s.prefix_end - s.prefix_begin, position = prefix + i - s.begin;
      const int64_t first = of.window > 0 ? std::max<int64_t>(0, position - of.window + 1) : 0;
      allowed[i].slice(0, s.prefix_begin + std::min(first, prefix), s.prefix_end).fill_(true);
      allowed[i].slice(0, s.begin + std::max<int64_t>(0, first - prefix), i + 1).fill_(true);
    }
  }
  const auto heads = [&](const at::Tensor& x, int64_t count) {
    return x.to(at::kDouble).view({tokens, count, of.head_dim}).transpose(0, 1);
  };
  const int64_t repeat = of.num_heads / of.num_kv_heads;
  const at::Tensor keys = heads(k, of.num_kv_heads).repeat_interleave(repeat, 0);
  const at::Tensor values = heads(v, of.num_kv_heads).repeat_interleave(repeat, 0);
  at::Tensor scores = at::matmul(heads(q, of.num_heads), keys.transpose(1, 2)) * of.scale;
  if (of.softcap > 0) scores = at::tanh(scores / of.softcap) * of.softcap;
  scores = scores.masked_fill(allowed.logical_not(), -INFINITY);
  return at::matmul(at::softmax(scores, -1), values).transpose(0, 1).reshape({tokens, -1});
}

TEST_P(LayerOpsTest, InAttentionEachTokenSeesItsPromptAndItsOwnPast) {
  for (const AttentionForm& form : kForms) {
    at::Tensor q = Random({121, 24}, 1), k = Random({121, 12}, 2), v = Random({121, 12}, 3);
    const Attention attention = ops_->Attend(q, k, v, *ops_->PlanAttention(kSegments), form);
    const at::Tensor expected = SlowAttention(q, k, v, form).to(at::kFloat);
    EXPECT_LT((attention.out - expected).abs().max().item<float>(), 2e-6f) << form.window;
  }
}

TEST_P(LayerOpsTest, InAttentionGradientsAgreeWithThoseOfTheDefinition) {
  for (const AttentionForm& form : kForms) {
    at::Tensor q = Random({121, 24}, 1), k = Random({121, 12}, 2), v = Random({121, 12}, 3);
    const at::Tensor out_grad = Random({121, 24}, 4);
    const auto plan = ops_->PlanAttention(kSegments);
    const Attention attention = ops_->Attend(q, k, v, *plan, form);
    const AttentionGrads grads = ops_->AttendBackward(q, k, v, attention, out_grad, *plan, form);
    const at::Tensor q2 = q.clone().requires_grad_(true), k2 = k.clone().requires_grad_(true),
                     v2 = v.clone().requires_grad_(true);
    (SlowAttention(q2, k2, v2, form) * out_grad.to(at::kDouble)).sum().backward();
    EXPECT_LT((grads.q - q2.grad()).abs().max().item<float>(), 1e-5f) << form.window;
    EXPECT_LT((grads.k - k2.grad()).abs().max().item<float>(), 1e-5f) << form.window;
    EXPECT_LT((grads.v - v2.grad()).abs().max().item<float>(), 1e-5f) << form.window;
  }
}

TEST_P(LayerOpsTest, InAttentionGradientsAgreeWithDifferences) {
  at::Tensor q = Random({121, 24}, 5), k = Random({121, 12}, 6), v = Random({121, 12}, 7);
  const at::Tensor out_grad = Random({121, 24}, 8);
  const Attention attention = ops_->Attend(q, k, v, *ops_->PlanAttention(kSegments), kHeads);
  const AttentionGrads grads =
      ops_->AttendBackward(q, k, v, attention, out_grad, *ops_->PlanAttention(kSegments), kHeads);
  const auto f = [&] {
    return Weighted(ops_->Attend(q, k, v, *ops_->PlanAttention(kSegments), kHeads).out, out_grad);
  };
  ExpectGradient(f, q, grads.q);
  ExpectGradient(f, k, grads.k);
  ExpectGradient(f, v, grads.v);
}

// What only a device does: activations in bfloat16.
class Bf16DeviceOpsTest : public LayerOpsTest {
 protected:
  Bf16DeviceOpsTest() { ops_ = MakeDeviceLayerOps(ComputeDType::kBf16).value(); }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(
    Bf16DeviceOpsTest);  // no device: the CPU's test in the cuda preset
INSTANTIATE_TEST_SUITE_P(Devices, Bf16DeviceOpsTest,
                         ::testing::ValuesIn(testing::TestDevicesButTheCpu()),
                         [](const auto& test) { return testing::NameOf(test.param); });

// 8 bits of significand: relative errors of sums of terms that were rounded to 2^-9.
double RelativeError(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor difference = got.to(at::kDouble) - expected.to(at::kDouble);
  return (difference.norm() / expected.to(at::kDouble).norm()).item<double>();
}

TEST_P(Bf16DeviceOpsTest, AttentionAndItsGradientsAreNearTheDefinitions) {
  const AttentionForm heads = {4, 2, 8, 1 / std::sqrt(8.0f)};
  const auto rounded = [&](int64_t width, int seed) {
    return Random({121, width}, seed).to(at::kBFloat16);
  };
  at::Tensor q = rounded(32, 1), k = rounded(16, 2), v = rounded(16, 3);
  const at::Tensor out_grad = rounded(32, 4);
  const Attention attention = ops_->Attend(q, k, v, *ops_->PlanAttention(kSegments), heads);
  const at::Tensor q2 = q.to(at::kDouble).requires_grad_(true),
                   k2 = k.to(at::kDouble).requires_grad_(true),
                   v2 = v.to(at::kDouble).requires_grad_(true);
  const at::Tensor expected = SlowAttention(q2, k2, v2, heads);
  EXPECT_EQ(attention.out.scalar_type(), at::kBFloat16);
  EXPECT_LT(RelativeError(attention.out, expected.detach()), 4e-3);
  (expected * out_grad.to(at::kDouble)).sum().backward();
  const AttentionGrads grads =
      ops_->AttendBackward(q, k, v, attention, out_grad, *ops_->PlanAttention(kSegments), heads);
  EXPECT_LT(RelativeError(grads.q, q2.grad()), 1e-2);
  EXPECT_LT(RelativeError(grads.k, k2.grad()), 1e-2);
  EXPECT_LT(RelativeError(grads.v, v2.grad()), 1e-2);
  const AttentionGrads again =
      ops_->AttendBackward(q, k, v, attention, out_grad, *ops_->PlanAttention(kSegments), heads);
  EXPECT_TRUE(grads.q.equal(again.q) && grads.k.equal(again.k) && grads.v.equal(again.v));
}

// 1 + 2^-12 needs 13 bits of significand: two parts of 8 hold it, one does not.
TEST_P(Bf16DeviceOpsTest, LogitsAreOfInputsOf16Bits) {
  const LinearLayer head{.weight = Of({1, 2}).view({2, 1}).to(at::kBFloat16)};
  const at::Tensor logits = ops_->Logits(head, Of({1 + 0x1p-12f}).view({1, 1}));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_EQ(logits[0][0].item<float>(), 1 + 0x1p-12f);
  EXPECT_EQ(logits[0][1].item<float>(), 2 + 0x1p-11f);
}

// 2^8 + 1 is no bfloat16: gradients of weights are added up in float32.
TEST_P(Bf16DeviceOpsTest, GradientsOfWeightsAreFp32Sums) {
  const LinearLayer layer{.weight = Zeros({1, 1}).to(at::kBFloat16),
                          .weight_grad = Of({256}).view({1, 1})};
  const at::Tensor one = Of({1}).view({1, 1}).to(at::kBFloat16);
  ops_->LinearBackward(layer, one, one);
  EXPECT_EQ(layer.weight_grad.item<float>(), 257.0f);
}

TEST(SmallMatmulTest, EveryShapeOfTileGivesTheProduct) {
  at::manual_seed(1);
  for (const int64_t m : {1, 5, 13}) {
    for (const int64_t n : {3, 16, 17, 50}) {
      const at::Tensor a = at::randn({m, 9}), b = at::randn({9, n}), c = at::randn({m, n});
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
