// A push from the trainer's device to the engine's device without a copy in host memory (the cast,
// a broadcast, moving the weights into place, the digest), compared with the same push through the
// host. Without a GPU, both sides run on the CPU with emulated kernels, and the group uses Gloo.
// The group has one rank, because NCCL does not allow two ranks on one device.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/comm/group.h"
#include "common/rendezvous/store.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"
#include "rollout_server/engine/engine.h"
#include "tests/parity/model_shapes.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/policy/cuda/device_cast.h"
#include "trainer/policy/policy.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using trainer::Rounding;

constexpr int32_t kVocabulary = 600;

struct Case {
  std::string name;
  DType dtype = DType::kBF16;
  Rounding rounding = Rounding::kDither;
  void (*shape)(ModelConfig&) = nullptr;
};

class DevicePushTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    config_ = testing::TinyModelConfig();
    config_.vocab_size = kVocabulary;
    if (GetParam().shape != nullptr) GetParam().shape(config_);
    ASSERT_THAT(testing::WriteTinyModel(directory_.path(), TANDEM_SOURCE_DIR, config_, 7), IsOk());
    masters_ = testing::TinyModelTensors(config_, 8);
    policy_ = trainer::Policy::Create(config_, masters_, ComputeDType::kFp32,
                                      /*trainable=*/true, Numerics::kFast, Device::kCuda)
                  .value();
    on_device_ = trainer::MakeDeviceCast(policy_->parameters(), dtype(), GetParam().rounding);
    std::vector<trainer::TensorPart> parts;
    for (const HostTensor& master : masters_) parts.push_back({master, 0});
    on_host_ = trainer::WeightCaster().Cast(parts, dtype(), GetParam().rounding).value().tensors;
  }

  DType dtype() const { return GetParam().dtype; }

  std::unique_ptr<rollout::Engine> MakeEngine() const {
    rollout::EngineOptions options;
    options.device = Device::kCuda;
    options.dtype = dtype() == DType::kBF16 ? ComputeDType::kBf16 : ComputeDType::kFp32;
    options.kv_capacity_tokens = 512;
    options.max_batch_sequences = 4;
    options.max_step_tokens = 32;
    options.cuda_graphs = false;
    options.reserve_for_push = true;
    return rollout::Engine::Create(directory_.path(), options).value();
  }

  // With a group of one rank, in buckets that may end anywhere except within an element.
  void Send(rollout::ArrivingWeights& arriving) {
    const auto backend =
        on_device_->memory() == Device::kCuda ? comm::Backend::kNccl : comm::Backend::kGloo;
    const auto store = comm::Store::Host(0, comm::Reach::kMachine);
    ASSERT_THAT(store, IsOk());
    const auto group = comm::JoinGroup(
        backend, *store,
        {.name = "push", .rank = 0, .members = {"alone"}, .deadline = absl::Minutes(5), .lag = {}});
    ASSERT_THAT(group, IsOk());
    std::vector<int64_t> sizes;
    for (const HostTensor& tensor : on_host_) sizes.push_back(tensor.spec.num_bytes());
    const std::vector<Bucket> buckets = PlanBuckets(sizes, 12'340);
    ASSERT_GT(buckets.size(), 4u);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const auto bytes = on_device_->Fill(i % 2, buckets[i]);
      ASSERT_THAT(bytes, IsOk());
      ASSERT_THAT(comm::BroadcastBytes(**group, *bytes, /*root=*/0, on_device_->memory()), IsOk());
      std::span<const std::byte> rest = *bytes;
      for (const BucketSlice& slice : buckets[i].slices) {
        const auto length = static_cast<size_t>(slice.length);
        ASSERT_THAT(
            arriving.Write(static_cast<size_t>(slice.tensor), slice.offset, rest.first(length)),
            IsOk());
        rest = rest.subspan(length);
      }
    }
  }

  static std::vector<float> Scores(rollout::Engine& engine) {
    rollout::ScoreSequence sequence;
    for (int32_t i = 0; i < 40; ++i) sequence.ids.push_back(i * 31 % kVocabulary);
    sequence.num_prompt_tokens = 10;
    return engine.Score({sequence}, {}).value()[0].logprobs;
  }

  testing::TempDir directory_;
  ModelConfig config_;
  std::vector<HostTensor> masters_, on_host_;
  std::unique_ptr<trainer::Policy> policy_;
  std::shared_ptr<trainer::BucketSource> on_device_;
};

TEST_P(DevicePushTest, GivesTheSumsAndTheScoresOfAPushThroughTheHost) {
  const auto direct = MakeEngine(), through_host = MakeEngine();
  EXPECT_EQ(direct->arrival_memory(), on_device_->memory());
  const std::vector<float> before = Scores(*direct);
  auto arriving = direct->Arrive();
  ASSERT_THAT(arriving, IsOk());
  ASSERT_NO_FATAL_FAILURE(Send(**arriving));
  EXPECT_EQ(Scores(*direct), before) << "nothing is live before it is installed";
  const auto sums = (*arriving)->Seal();
  ASSERT_THAT(sums, IsOk());
  ASSERT_EQ(sums->size(), on_host_.size());
  for (size_t i = 0; i < on_host_.size(); ++i) {
    EXPECT_EQ((*sums)[i], WordSumsDigest(on_host_[i].bytes)) << on_host_[i].spec.name;
  }
  direct->Install((*arriving)->Take(), WeightVersion(1));
  through_host->Install(through_host->Stage(on_host_).value(), WeightVersion(1));
  EXPECT_EQ(Scores(*direct), Scores(*through_host));
  EXPECT_NE(Scores(*direct), before);
}

TEST_P(DevicePushTest, MastersThatMovedShowInTheSumsOfTheTensorThatMoved) {
  const auto engine = MakeEngine();
  // The weights change by more than one bf16 ulp, after the cast on the host.
  policy_->parameters()[0].master.detach().narrow(0, 3, 1).mul_(1.5);
  auto arriving = engine->Arrive();
  ASSERT_THAT(arriving, IsOk());
  ASSERT_NO_FATAL_FAILURE(Send(**arriving));
  const auto sums = (*arriving)->Seal();
  ASSERT_THAT(sums, IsOk());
  for (size_t i = 0; i < on_host_.size(); ++i) {
    EXPECT_EQ((*sums)[i] == WordSumsDigest(on_host_[i].bytes), i != 0) << on_host_[i].spec.name;
  }
}

// The engine's receive buffers, filled from the trainer's as a broadcast fills them.
TEST_P(DevicePushTest, RefusesWhatDoesNotFitAndWhatComesAfterTheSums) {
  const auto engine = MakeEngine();
  auto arriving = engine->Arrive();
  ASSERT_THAT(arriving, IsOk());
  const auto buffer = (*arriving)->Buffer(0, 64), other = (*arriving)->Buffer(1, 8);
  ASSERT_THAT(buffer, IsOk());
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(buffer->size(), 64u);
  EXPECT_NE(buffer->data(), other->data());
  const int64_t size = on_host_[0].spec.num_bytes();
  EXPECT_THAT((*arriving)->Write(on_host_.size(), 0, *buffer),
              FailsWith(absl::StatusCode::kOutOfRange, "tensor"));
  EXPECT_THAT((*arriving)->Write(0, size - 60, *buffer),
              FailsWith(absl::StatusCode::kOutOfRange, "64 bytes at"));
  EXPECT_THAT((*arriving)->Write(0, 1, *buffer),
              FailsWith(absl::StatusCode::kInvalidArgument, "cut an element in two"));
  EXPECT_THAT((*arriving)->Write(0, size - 64, *buffer), IsOk());
  ASSERT_THAT((*arriving)->Seal(), IsOk());
  EXPECT_THAT((*arriving)->Write(0, 0, *buffer),
              FailsWith(absl::StatusCode::kFailedPrecondition, "sealed"));
  EXPECT_THAT((*arriving)->Buffer(0, 64).status(),
              FailsWith(absl::StatusCode::kFailedPrecondition, "sealed"));
  Bucket odd{.slices = {{.tensor = 0, .offset = 1, .length = 7}}, .num_bytes = 7};
  EXPECT_THAT(on_device_->Fill(0, odd).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "cut an element in two"));
}

INSTANTIATE_TEST_SUITE_P(
    Models, DevicePushTest,
    ::testing::Values(Case{.name = "LlamaBf16"},
                      Case{.name = "Qwen3Bf16Nearest",
                           .rounding = Rounding::kNearest,
                           .shape = testing::Qwen3Like},
                      Case{.name = "Qwen2Fp32", .dtype = DType::kF32, .shape = testing::Qwen2Like}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
