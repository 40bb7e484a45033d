// How much device memory an engine takes at its start, with emulated_device_ops.h.
#include <gtest/gtest.h>

#include "rollout_server/engine/cuda/cuda_weights.h"
#include "tests/rollout_server/engine/engine_fixture.h"
#include "tests/support/device/emulated_device_ops.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

class CudaMemoryTest : public EngineFixture {
 protected:
  void TearDown() override { cuda::emulated_device() = {}; }

  static EngineOptions Cuda() {
    EngineOptions options = Fp32();
    options.device = Device::kCuda;
    options.kv_capacity_tokens = 0;
    options.max_batch_sequences = 4;
    options.max_step_tokens = 16;
    return options;
  }

  static Completions Draw(Engine& engine) {
    EXPECT_THAT(engine.Add(Group(1, 10, 2, 4)), IsOk());
    return RunToEnd(engine);
  }
};

TEST_F(CudaMemoryTest, TheCacheTakesWhatTheDeviceHasLeft) {
  const auto plan = cuda::PlanMemory(tandem::testing::TinyModelConfig(), Cuda(),
                                     {int64_t{4} << 30, int64_t{4} << 30});
  ASSERT_THAT(plan, IsOk());
  // So that 100 blocks are left.
  const int64_t block = plan->kv_bytes / plan->num_blocks;
  cuda::emulated_device().memory = {plan->rest_bytes() + 100 * block, int64_t{4} << 30};
  const auto engine = Make(Cuda());
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->Stats().kv_capacity_tokens, 1600);
  EXPECT_EQ(Draw(*engine)[1].size(), 2u);
}

TEST_F(CudaMemoryTest, ADeviceThatIsTooSmallEndsTheStartWithTheParts) {
  cuda::emulated_device().memory = {int64_t{1} << 30, int64_t{1} << 30};
  EXPECT_THAT(Engine::Create(directory(), Cuda()),
              FailsWith(absl::StatusCode::kResourceExhausted, "before any KV cache"));
  EXPECT_THAT(Engine::Create(directory(), Cuda()),
              FailsWith(absl::StatusCode::kResourceExhausted, "CUDA and cuBLAS 768 MiB"));
}

TEST_F(CudaMemoryTest, RefusesACacheOfLessThanABlock) {
  EngineOptions options = Cuda();
  options.kv_capacity_tokens = 15;
  EXPECT_THAT(Engine::Create(directory(), options),
              FailsWith(absl::StatusCode::kInvalidArgument, "kv_capacity_tokens is 15, want 0"));
}

// The memory of each version of weights has a new number.
TEST_F(CudaMemoryTest, TheFirstPushGoesIntoMemoryHeldFromTheStart) {
  for (const bool reserve : {true, false}) {
    EngineOptions options = Cuda();
    options.kv_capacity_tokens = 256;
    options.reserve_for_push = reserve;
    const auto engine = Make(options);
    ASSERT_TRUE(engine);
    const CudaWeights later;
    const auto staged =
        engine->Stage(tandem::testing::TinyModelTensors(tandem::testing::TinyModelConfig(), 5));
    ASSERT_THAT(staged, IsOk());
    EXPECT_EQ(dynamic_cast<const CudaWeights&>(**staged).place < later.place, reserve);
  }
}

TEST_F(CudaMemoryTest, WeightsThatArriveOnTheDeviceGoThereTooAndWhatIsGivenUpIsFreeForTheNext) {
  EngineOptions options = Cuda();
  options.kv_capacity_tokens = 256;
  options.reserve_for_push = true;
  const auto engine = Make(options);
  ASSERT_TRUE(engine);
  const CudaWeights later;
  for (int push = 0; push < 2; ++push) {
    const auto given_up = engine->Arrive();
    ASSERT_THAT(given_up, IsOk());
  }
  auto arriving = engine->Arrive();
  ASSERT_THAT(arriving, IsOk());
  // While one arrival is open, another one has memory of its own.
  auto beside = engine->Arrive();
  ASSERT_THAT(beside, IsOk());
  EXPECT_GT(dynamic_cast<const CudaWeights&>(*(*beside)->Take()).place, later.place);
  ASSERT_THAT((*arriving)->Seal(), IsOk());
  const auto weights = (*arriving)->Take();
  EXPECT_LT(dynamic_cast<const CudaWeights&>(*weights).place, later.place);
}

TEST_F(CudaMemoryTest, AnEngineOnTheCpuHasNoPlaceOnADeviceAndKeepsItsSpare) {
  const auto engine = Make(Fp32());
  EXPECT_FALSE(engine->arrival_memory().has_value());
  EXPECT_THAT(engine->Arrive(), FailsWith(absl::StatusCode::kUnimplemented, "no device"));
  EXPECT_THAT(
      engine->Stage(tandem::testing::TinyModelTensors(tandem::testing::TinyModelConfig(), 5)),
      IsOk());
}

TEST_F(CudaMemoryTest, WithoutMemoryForGraphsStepsRunAsTheyCome) {
  std::vector<Completions> runs;
  for (const int64_t graphs : {100, 1, 0}) {
    cuda::emulated_device().graphs_left = graphs;
    EngineOptions options = Cuda();
    options.kv_capacity_tokens = 256;
    const auto engine = Make(options);
    ASSERT_TRUE(engine);
    runs.push_back(Draw(*engine));
  }
  ExpectSameBytes(runs[1], runs[0]);
  ExpectSameBytes(runs[2], runs[0]);
}

// The CPU's default capacity is not required on a device.
TEST_F(CudaMemoryTest, OnTheCpuTheCacheHasItsOwnDefault) {
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = 0;
  EXPECT_EQ(Make(options)->Stats().kv_capacity_tokens, 32768);
}

}  // namespace
}  // namespace tandem::rollout
