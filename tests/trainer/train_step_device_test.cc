// Whole train steps on a device beside those on the CPU.
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tests/support/status_matchers.h"
#include "tests/trainer/scored_groups.h"
#include "tests/trainer/test_devices.h"
#include "tests/trainer/toy_model.h"
#include "trainer/train_step.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::ScoredGroup;

class TrainStepDeviceTest : public ::testing::TestWithParam<Device> {
 protected:
  static std::unique_ptr<TrainStep> Make(Device device, bool checkpoint) {
    TrainStepSetup setup{.config = testing::ToyConfig(), .temperature = 0.9};
    setup.device = device;
    setup.checkpoint_activations = checkpoint;
    setup.weights = testing::ToyWeights(setup.config);
    setup.reference_weights = testing::ToyWeights(setup.config, /*seed=*/2);
    TrainStepOptions options;
    options.microbatch_tokens = 20;
    options.optimizer = {.learning_rate = 1e-3, .max_grad_norm = 0.5};
    options.loss.kl_coefficient = 0.1;
    return TrainStep::Create(setup, options).value();
  }

  static std::vector<ScoredGroup> Groups() {
    std::vector<ScoredGroup> groups;
    for (int g = 0; g < 3; ++g) {
      groups.push_back(testing::GroupWithPrompt(g, {3, 9, 4 + g, 1}));
      for (int i = 0; i < 4; ++i) {
        std::vector<int32_t> ids;
        for (int t = 0; t < 1 + 3 * i; ++t) ids.push_back((7 * g + 5 * i + 11 * t) % 32);
        testing::AddCompletion(groups.back(), ids, i % 2 == 0 ? 1.0f : -0.7f, -3.5f);
      }
    }
    return groups;
  }

  // Of the loss at equal weights, in float32.
  static double LossBound(double loss) { return 1e-5 * std::abs(loss) + 1e-6; }

  static std::vector<float> Masters(const TrainStep& step) {
    std::vector<float> all;
    for (const TensorSource& source : step.Masters()) {
      const HostTensor tensor = source.read().value();
      const size_t at = all.size();
      all.resize(at + tensor.bytes.size() / 4);
      std::memcpy(all.data() + at, tensor.bytes.data(), tensor.bytes.size());
    }
    return all;
  }

#ifdef TANDEM_ON_GPU
  static double Distance(const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - double{b[i]}, 2);
    return std::sqrt(squares);
  }
#endif
};

// Ten updates of both, in float32. Adam divides by the root of small second moments, so that
// rounding grows: by a thousandth of the learning rate a step at most. On a GPU it grows so much
// that the loss follows: to first order by at most the gradient's norm times the distance of the
// weights.
TEST_P(TrainStepDeviceTest, LossesNormsAndWeightsAreTheCpus) {
  for (const bool checkpoint : {false, true}) {
    SCOPED_TRACE(checkpoint);
    const auto here = Make(GetParam(), checkpoint), on_cpu = Make(Device::kCpu, false);
    for (int i = 0; i < 10; ++i) {
#ifdef TANDEM_ON_GPU
      const double distance = Distance(Masters(*here), Masters(*on_cpu));
#else
      const double distance = 0;
#endif
      const StepReport got = here->Run(Groups()).value(), want = on_cpu->Run(Groups()).value();
      EXPECT_NEAR(got.loss.total, want.loss.total,
                  LossBound(want.loss.total) + want.optimizer.grad_norm * distance);
      EXPECT_NEAR(got.optimizer.grad_norm, want.optimizer.grad_norm,
                  1e-4 * want.optimizer.grad_norm);
    }
    const std::vector<float> got = Masters(*here), want = Masters(*on_cpu);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
  }
}

TEST_P(TrainStepDeviceTest, EachStepFromTheCpusWeightsHasItsLossAndNorm) {
  const auto here = Make(GetParam(), false), on_cpu = Make(Device::kCpu, false);
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(here->Restore(on_cpu->Masters(), on_cpu->OptimizerState(), on_cpu->num_updates()),
                IsOk());
    const StepReport got = here->Run(Groups()).value(), want = on_cpu->Run(Groups()).value();
    EXPECT_NEAR(got.loss.total, want.loss.total, LossBound(want.loss.total)) << i;
    EXPECT_NEAR(got.optimizer.grad_norm, want.optimizer.grad_norm, 1e-4 * want.optimizer.grad_norm);
  }
}

TEST_P(TrainStepDeviceTest, EqualStepsGiveEqualBits) {
  const auto a = Make(GetParam(), false), b = Make(GetParam(), false);
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(a->Run(Groups()), IsOk());
    ASSERT_THAT(b->Run(Groups()), IsOk());
  }
  EXPECT_EQ(Masters(*a), Masters(*b));
}

// Weights and moments through the host, as a resumed run has them.
TEST_P(TrainStepDeviceTest, WhatIsSavedAndTakenBackGoesOnTheSame) {
  const auto first = Make(GetParam(), false), second = Make(GetParam(), false);
  ASSERT_THAT(first->Run(Groups()), IsOk());
  ASSERT_THAT(second->Restore(first->Masters(), first->OptimizerState(), first->num_updates()),
              IsOk());
  ASSERT_THAT(first->Run(Groups()), IsOk());
  ASSERT_THAT(second->Run(Groups()), IsOk());
  EXPECT_EQ(Masters(*first), Masters(*second));
}

// What a push sends, in buckets that end anywhere but within an element. On the CPU there is
// nothing to make it from.
TEST_P(TrainStepDeviceTest, BucketsMadeOnTheDeviceAreTheHostsCastBitForBit) {
  const auto step = Make(GetParam(), false);
  ASSERT_THAT(step->Run(Groups()), IsOk());
  const std::vector<TensorPart> masters = step->HeldMasters().value();
  for (const auto& [dtype, rounding] : {std::pair(DType::kBF16, Rounding::kDither),
                                        {DType::kBF16, Rounding::kNearest},
                                        {DType::kF32, Rounding::kNearest}}) {
    const auto source = step->DeviceBuckets(dtype, rounding);
    ASSERT_EQ(source == nullptr, GetParam() == Device::kCpu);
    if (source == nullptr) continue;
    std::vector<int64_t> sizes;
    std::string want, got;
    const CastParts cast = WeightCaster().Cast(masters, dtype, rounding).value();
    for (const HostTensor& tensor : cast.tensors) {
      sizes.push_back(tensor.spec.num_bytes());
      want.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    }
    const auto memory = source->memory() == Device::kCuda ? at::kCUDA : at::kCPU;
    const std::vector<Bucket> buckets = tandem::PlanBuckets(sizes, 1004);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const auto bytes = source->Fill(i % 2, buckets[i]);
      ASSERT_THAT(bytes, IsOk());
      const at::Tensor host = at::from_blob(bytes->data(), {std::ssize(*bytes)},
                                            at::TensorOptions(at::kByte).device(memory))
                                  .cpu();
      got.append(static_cast<const char*>(host.const_data_ptr()), bytes->size());
    }
    EXPECT_TRUE(got == want);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainStepDeviceTest, ::testing::ValuesIn(testing::TestDevices()),
                         [](const auto& test) { return testing::NameOf(test.param); });

}  // namespace
}  // namespace tandem::trainer
