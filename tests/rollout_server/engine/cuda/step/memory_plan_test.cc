#include "rollout_server/engine/cuda/step/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace tandem::rollout::cuda {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kBlockBytes =
    2 * 2 * 2 * 16 * 16 * 2;  // keys and values, L, Hkv, tokens, D, bf16

ModelConfig Small() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 1000;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 512;
  config.tie_word_embeddings = true;
  return config;
}

// Of Small, two versions and steps under the measurement's size, without graphs, on 4 GiB:
//   weights 2 x 278 016, step (the measurement) and driver 768 MiB each, pushes 512 MiB,
//   spare 4 GiB / 64
constexpr int64_t kRest = int64_t{2} * 278016 + int64_t{2} * 805306368 + 536870912 + 67108864;
EngineOptions Needs(int64_t kv_capacity_tokens = 0) {
  return {.cuda_graphs = false,
          .kv_capacity_tokens = kv_capacity_tokens,
          .reserve_for_push = true,
          .max_batch_sequences = 4,
          .max_step_tokens = 8};
}

TEST(MemoryPlan, CountsWeightsAsTheAllocatorRoundsThem) {
  // Embedding 128 000; a layer: norms 2 x 512 (256 bytes of fp32 each), q and o 8 192 each, k and v
  // 4 096 each, gate, up and down 16 384 each; the last norm 512.
  EXPECT_EQ(WeightsBytes(Small(), DType::kBF16), 128000 + 2 * 74752 + 512);
  ModelConfig wide = Small();  // 1 000 x 1 024 x 2 = 2 048 000 bytes take 2 MiB
  wide.hidden_size = 1024;
  wide.num_layers = 0;
  EXPECT_EQ(WeightsBytes(wide, DType::kBF16), 2097152 + 4096);
}

TEST(MemoryPlan, CountsAStepAsIfALayersArraysLivedAtOnce) {
  // A token: inputs 160, stream 896, attention 1 024, MLP 1 280. Attention of the step: 65 536
  // gathered tokens of 136 bytes and the output of 8 queries, 1 152; paged attention takes less.
  // Logits: 4 rows in two parts of 4 000 + 128, records and forbidden
  // ids 876 and workspace 36 960 each.
  const int64_t want = 8 * 3360 + 65536 * 136 + 1152 + 8 * 4128 + 4 * 876 + 4 * 36960;
  EXPECT_EQ(StepBytes(Small(), DType::kBF16, 8, 4), want);
}

TEST(MemoryPlan, CountsLogitsOfAtMost512RowsAtOnce) {
  const int64_t more =
      StepBytes(Small(), DType::kBF16, 1000, 1000) - StepBytes(Small(), DType::kBF16, 1000, 512);
  EXPECT_EQ(more, 488 * 876);  // records alone
}

TEST(MemoryPlan, GivesTheCacheWhatIsLeft) {
  const auto plan = PlanMemory(Small(), Needs(), {kRest + 10 * kBlockBytes + 5, 4 * kGiB});
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->rest_bytes(), kRest);
  EXPECT_EQ(plan->num_blocks, 10);
  EXPECT_EQ(plan->kv_bytes, 10 * kBlockBytes);
}

TEST(MemoryPlan, GivesTheCacheWhatIsAskedForAndNoMore) {
  const auto plan = PlanMemory(Small(), Needs(48), {3 * kGiB, 4 * kGiB});
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->num_blocks, 3);
}

TEST(MemoryPlan, RefusesACacheThatDoesNotFitAndSaysWhatDoes) {
  const DeviceMemory device = {kRest + 10 * kBlockBytes, 4 * kGiB};
  EXPECT_THAT(PlanMemory(Small(), Needs(160), device), IsOk());
  const auto plan = PlanMemory(Small(), Needs(176), device);
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kResourceExhausted,
                              "engine.kv_capacity_tokens 176: at most 160 fit"));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("weights 2 x 1 MiB"));
}

TEST(MemoryPlan, RefusesAModelThatLeavesNothingForACache) {
  for (const int64_t asked : {0, 160}) {
    EXPECT_THAT(PlanMemory(Small(), Needs(asked), {kRest + kBlockBytes - 1, 4 * kGiB}),
                FailsWith(absl::StatusCode::kResourceExhausted, "before any KV cache"));
  }
}

TEST(MemoryPlan, HoldsASecondVersionWhereAPushMayComeAlone) {
  EngineOptions needs = Needs();
  needs.reserve_for_push = false;
  const DeviceMemory device = {kRest + 10 * kBlockBytes, 4 * kGiB};
  EXPECT_EQ(PlanMemory(Small(), needs, device)->rest_bytes(), kRest - 278016 - 536870912);
}

TEST(MemoryPlan, GrowsWithWhatAStepMayHold) {
  const DeviceMemory device = {64 * kGiB, 64 * kGiB};
  EngineOptions more = Needs();
  more.max_step_tokens = 1 << 20;
  const auto plan = PlanMemory(Small(), Needs(), device), large = PlanMemory(Small(), more, device);
  EXPECT_EQ(large->step_bytes, StepBytes(Small(), DType::kBF16, 1 << 20, 512));
  // To whole blocks.
  EXPECT_NEAR(plan->kv_bytes - large->kv_bytes, large->step_bytes - plan->step_bytes, kBlockBytes);
  more = Needs();
  more.cuda_graphs = true;
  EXPECT_GE(PlanMemory(Small(), more, device)->graph_bytes, kMostGraphs * kGraphBytes);
}

TEST(MemoryPlan, PrintsItsParts) {
  const auto plan = PlanMemory(Small(), Needs(160), {3 * kGiB, 4 * kGiB});
  EXPECT_EQ(
      plan->Text(),
      "weights 2 x 1 MiB, largest step 768 MiB, pushes 512 MiB, CUDA and cuBLAS 768 MiB, spare "
      "64 MiB, KV cache 1 MiB (160 tokens): 2113 MiB of 3072 MiB free");
}

}  // namespace
}  // namespace tandem::rollout::cuda
