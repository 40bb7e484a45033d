#include "cli/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cli/plan/placement.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace tandem::plan {
namespace {

using testing::FailsWith;

// One layer of E 8, I 16, two heads of 4 elements, one KV head, a vocabulary of 10, tied:
// 10 * 8 embedding, 8 final norm, q 64, k 32, v 32, o 64, gate, up and down 128 each, two norms.
constexpr int64_t kLinear = 64 + 32 + 32 + 64 + 3 * 128;  // 576
constexpr int64_t kHead = 80;
constexpr int64_t kAll = kHead + 8 + kLinear + 16;  // 680

ModelConfig Config() {
  return {.model_type = "llama",
          .vocab_size = 10,
          .hidden_size = 8,
          .intermediate_size = 16,
          .num_layers = 1,
          .num_heads = 2,
          .num_kv_heads = 1,
          .head_dim = 4,
          .max_position_embeddings = 64,
          .tie_word_embeddings = true,
          .eos_token_ids = {2}};
}

TrainerShape Shape() {
  return {.policy = Config(), .row_tokens = 6, .row_targets = 4, .batch_tokens = 12};
}

int64_t Bytes(const ProcessMemory& memory, const std::string& part) {
  const auto found = std::ranges::find(memory.parts, part, &MemoryPart::name);
  return found == memory.parts.end() ? 0 : found->bytes;
}

TEST(MemoryPlanTest, AdaptersTakeThePlaceOfGradientsAndMomentsOfAllWeightsAndOfTheReference) {
  TrainerShape shape = Shape();
  shape.has_reference = true;
  shape.push_dtype = DType::kBF16;
  shape.lora.rank = 2;
  shape.lora.targets = {"q_proj", "down_proj"};
  constexpr int64_t kAdapters = 2 * (8 + 8) + 2 * (16 + 8);
  const ProcessMemory memory = TrainerMemory(shape);
  EXPECT_EQ(Bytes(memory, "policy masters"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "policy gradients"), 0);
  EXPECT_EQ(Bytes(memory, "policy moments"), 0);
  EXPECT_EQ(Bytes(memory, "reference masters"), 0);
  EXPECT_EQ(Bytes(memory, "adapters, masters and gradients"), 8 * kAdapters);
  EXPECT_EQ(Bytes(memory, "adapters, moments"), 8 * kAdapters);
  EXPECT_EQ(Bytes(memory, "push: adapters of two versions"), 8 * kAdapters);
  EXPECT_EQ(Bytes(memory, "push: masters of the last version"), 0);
  shape.ranks = 2;
  shape.shard_parameters = true;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "policy masters"), 4 * kAll) << "the base stays whole";
  EXPECT_EQ(Bytes(TrainerMemory(shape), "adapters, moments"), 4 * kAdapters);
  shape.lora.push = LoraPush::kMerged;
  EXPECT_GT(Bytes(TrainerMemory(shape), "push: masters of the last version"), 0);
}

TEST(MemoryPlanTest, SupervisedTrainingHoldsFourCopiesAndTheFile) {
  const ProcessMemory memory = TrainerMemory(Shape());
  EXPECT_EQ(Bytes(memory, "model file, mapped"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "policy masters"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "policy gradients"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "policy moments"), 8 * kAll);
  // Of a token: input and middle 2 * 8, q and the attention's output 2 * 8, k and v 2 * 4, gate and
  // up 2 * 16, two norms, and the log-sum-exp of two heads; fp32.
  EXPECT_EQ(Bytes(memory, "activations"), 6 * 4 * (16 + 16 + 8 + 32 + 2 + 2));
  EXPECT_EQ(Bytes(memory, "kept by the allocator"), 6 * 3 * (16 + 16 + 8 + 32 + 2 + 2));
  // One layer's gradients, T (4 E + q + 3 I + q + 2 kv), are more than the logits of 4 tokens.
  EXPECT_EQ(Bytes(memory, "passes, beside the activations"), 6 * 4 * (32 + 8 + 48 + 8 + 8));
  EXPECT_EQ(memory.parts.size(), 8u);  // with the batch; no push, no cast copy
  int64_t sum = 0;
  for (const MemoryPart& part : memory.parts) sum += part.bytes;
  EXPECT_EQ(memory.total(), sum);
}

TEST(MemoryPlanTest, TheAllocatorKeepsLessOfPassesThatAllHaveGradients) {
  TrainerShape shape = Shape();
  shape.scores_first = false;
  const int64_t activations = 6 * 4 * (16 + 16 + 8 + 32 + 2 + 2);  // as above
  EXPECT_EQ(Bytes(TrainerMemory(shape), "kept by the allocator"), activations * 55 / 100);
  shape.dtype = ComputeDType::kBf16;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "kept by the allocator"), activations * 4 / 10);
  shape.fast_bf16 = false;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "kept by the allocator"), activations * 3 / 4);
}

TEST(MemoryPlanTest, LogitsAreKeptUpToALimitAndComputedInChunksBeyond) {
  TrainerShape shape = Shape();
  shape.policy.vocab_size = 100000;
  shape.row_tokens = shape.row_targets = 1000;  // 10^8 logits: the limit
  const int64_t states = 4 * 1000 * 4 * 8, head = 4 * 100000 * 8;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "passes, beside the activations"),
            states + 8 * 100'000'000 + head);
  shape.row_tokens = shape.row_targets = 1001;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "passes, beside the activations"),
            4 * 1001 * 4 * 8 + int64_t{8} * 256 * 100000 + head);
  shape.over_vocabulary = false;
  EXPECT_LT(Bytes(TrainerMemory(shape), "passes, beside the activations"), 1'000'000);
}

TEST(MemoryPlanTest, EachModelOfAnAlgorithmIsCountedOnce) {
  TrainerShape shape = Shape();
  shape.has_reference = true;
  shape.critic = Config();
  shape.critic->tie_word_embeddings = false;  // its head over the vocabulary is not read
  shape.push_dtype = DType::kBF16;
  const ProcessMemory memory = TrainerMemory(shape);
  EXPECT_EQ(Bytes(memory, "reference masters"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "reference gradients"), 0);
  EXPECT_EQ(Bytes(memory, "critic masters"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "critic gradients"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "critic moments"), 8 * kAll);
  EXPECT_EQ(Bytes(memory, "push: masters of the last version"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "push: cast of the last version"), 2 * kAll);
  EXPECT_EQ(Bytes(memory, "push: its deltas"), 2 * kAll / 4);
}

TEST(MemoryPlanTest, APushFollowsThePassesAndTheLargerOfThemCounts) {
  TrainerShape shape = Shape();  // passes of 1824 + 1368 + 2496 bytes
  const int64_t without = TrainerMemory(shape).total();
  shape.push_dtype = DType::kBF16;  // a cast and a quarter of it: 1700 bytes
  ProcessMemory memory = TrainerMemory(shape);
  EXPECT_EQ(memory.total(), without + 4 * kAll + 2 * kAll + kAll / 2);
  EXPECT_EQ(Bytes(memory, "push: cast and deltas of the next version"), 0);
  shape.policy.num_layers = 10;  // activations, and weights, of ten layers
  shape.row_tokens = shape.row_targets = 1;
  memory = TrainerMemory(shape);
  const int64_t all = kHead + 8 + 10 * (kLinear + 16);
  EXPECT_EQ(Bytes(memory, "push: cast and deltas of the next version"), 2 * all + all / 2);
  EXPECT_EQ(Bytes(memory, "activations"), 0);
  shape.device = Device::kCuda;  // cast bucket by bucket there
  EXPECT_EQ(Bytes(TrainerMemory(shape), "push: masters of the last version"), 0);
}

TEST(MemoryPlanTest, ComputingInBf16TakesACopyOfWhatProductsRead) {
  TrainerShape shape = Shape();
  shape.has_reference = true;
  shape.dtype = ComputeDType::kBf16;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "policy cast copy"), 2 * (kLinear + kHead));
  EXPECT_EQ(Bytes(TrainerMemory(shape), "reference cast copy"), 2 * kLinear);
  shape.fast_bf16 = false;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "policy cast copy"), 4 * kLinear);
  shape.device = Device::kCuda;
  const ProcessMemory device = TrainerMemory(shape);
  EXPECT_EQ(Bytes(device, "policy cast copy"), 2 * (kLinear + kHead));
  EXPECT_EQ(Bytes(device, "model file, mapped"), 0);
  // The residual stream is fp32, what layers keep beside it bf16.
  EXPECT_EQ(Bytes(device, "activations"), 6 * (4 * (16 + 2 + 2) + 2 * (16 + 8 + 32)));
}

TEST(MemoryPlanTest, RanksShareMomentsAndShardedOnesTheRestToo) {
  TrainerShape shape = Shape();
  shape.ranks = 4;
  ProcessMemory memory = TrainerMemory(shape);
  EXPECT_EQ(Bytes(memory, "policy masters"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "policy moments"), 2 * kAll);
  shape.shard_parameters = true;
  memory = TrainerMemory(shape);
  EXPECT_EQ(Bytes(memory, "policy masters"), kAll);
  EXPECT_EQ(Bytes(memory, "policy gradients"), kAll);
  EXPECT_EQ(Bytes(memory, "policy moments"), 2 * kAll);
  // The layer (592 parameters) and the next stage, and gradients of the larger one twice.
  EXPECT_EQ(Bytes(memory, "gathered parameters"), 4 * (592 + 592) + 8 * 592);
}

TEST(MemoryPlanTest, CheckpointedActivationsAreTheInputsAndOneLayer) {
  TrainerShape shape = Shape();
  shape.policy.num_layers = 3;
  shape.checkpoint_activations = true;
  EXPECT_EQ(Bytes(TrainerMemory(shape), "activations"), 6 * 4 * (3 * 8 + 8 + 16 + 8 + 32 + 2 + 2));
}

TEST(MemoryPlanTest, AServerHoldsTwoVersionsAndTheFullestOfThreeMoments) {
  ServerShape server = {.config = Config()};
  server.engine.dtype = ComputeDType::kFp32;
  server.engine.kv_capacity_tokens = 32;
  ProcessMemory memory = ServerMemory(server);
  EXPECT_EQ(Bytes(memory, "weights"), 4 * kAll);
  EXPECT_EQ(Bytes(memory, "next version of the weights"), 4 * kAll);
  EXPECT_GE(Bytes(memory, "KV cache"), 32 * 4 * (4 + 4));
  EXPECT_EQ(Bytes(memory, "measurement of the machine"), 1 << 28);
  // Over 256 MiB of weights a push is fuller, and in bf16 the start from an fp32 file.
  server.config.vocab_size = 10'000'000;
  memory = ServerMemory(server);
  EXPECT_EQ(Bytes(memory, "staging of a push"), Bytes(memory, "weights"));
  EXPECT_EQ(Bytes(memory, "measurement of the machine"), 0);
  server.engine.dtype = ComputeDType::kBf16;
  memory = ServerMemory(server);
  EXPECT_EQ(Bytes(memory, "model file, mapped, and its cast"), 3 * Bytes(memory, "weights"));
}

RunShape OnGpus(int64_t memory) {
  RunShape run = {.trainer = Shape(), .servers = 1, .least_row_tokens = 3, .memory_bytes = memory};
  run.trainer.device = Device::kCuda;
  run.trainer.policy.num_layers = 100;
  run.trainer.ranks = 2;
  run.trainer.has_reference = true;
  run.trainer.critic = run.trainer.policy;
  run.server = ServerShape{.config = Config()};
  run.server->engine.device = Device::kCuda;
  run.server->engine.kv_capacity_tokens = 1 << 16;
  return run;
}

TEST(PlacementTest, EachProcessHasAGpuAndOneGpuHoldsBoth) {
  RunShape run = OnGpus(int64_t{80} << 30);
  const std::vector<Place> places = PlaceProcesses(run);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].count, 2);
  EXPECT_EQ(places[0].bytes, TrainerMemory(run.trainer).total());
  EXPECT_TRUE(places[0].fits());
  EXPECT_TRUE(Advise(run).empty());
  run.one_gpu = true;
  run.trainer.ranks = 1;
  ASSERT_EQ(PlaceProcesses(run).size(), 1u);
  EXPECT_EQ(PlaceProcesses(run)[0].processes.size(), 2u);
}

TEST(PlacementTest, WhatDoesNotFitComesWithOptionsTheLargestSavingFirst) {
  RunShape run = OnGpus(0);
  run.server.reset();
  run.memory_bytes = PlaceProcesses(run)[0].bytes - 1;
  const std::vector<Advice> advice = Advise(run);
  ASSERT_FALSE(advice.empty());
  EXPECT_TRUE(std::ranges::is_sorted(advice, std::ranges::greater(), &Advice::saved_bytes));
  std::vector<std::string> options;
  for (const Advice& each : advice) options.push_back(each.option);
  EXPECT_EQ(std::ranges::count(options, "shard_parameters: true"), 1);
  EXPECT_EQ(std::ranges::count(options, "trainer.critic.backbone: shared"), 1);
  EXPECT_EQ(std::ranges::count(options, "checkpoint_activations: true"), 1);
  // The critic of its own is 16 bytes a parameter, less the share of moments of the other rank.
  const auto critic = std::ranges::find(options, "trainer.critic.backbone: shared");
  const Advice& saved = advice[static_cast<size_t>(critic - options.begin())];
  const int64_t parameters = kHead + 8 + 100 * (kLinear + 16);
  EXPECT_EQ(saved.saved_bytes, (4 + 4 + 8 / 2) * parameters);
  EXPECT_NE(ToText(run).find("DOES NOT FIT"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(ToJson(run)).at("fits").get<bool>());
}

TEST(PlacementTest, AKvCacheThatIsTooLargeComesWithOneThatFits) {
  RunShape run = OnGpus(int64_t{4} << 30);
  run.server->engine.kv_capacity_tokens = 1 << 27;
  const std::vector<Advice> advice = Advise(run);
  ASSERT_EQ(advice.size(), 1u);
  const std::string prefix = "server.engine.kv_capacity_tokens: ";
  ASSERT_EQ(advice[0].option.find(prefix), 0u) << advice[0].option;
  const int64_t tokens = std::stoll(advice[0].option.substr(prefix.size()));
  run.server->engine.kv_capacity_tokens = tokens;
  EXPECT_TRUE(PlaceProcesses(run)[1].fits());
  run.server->engine.kv_capacity_tokens = tokens + 16;  // a block more
  EXPECT_FALSE(PlaceProcesses(run)[1].fits());
}

TEST(PlacementTest, OnTheCpuAllProcessesShareTheMachine) {
  RunShape run = OnGpus(int64_t{1} << 40);
  run.trainer.device = run.server->engine.device = Device::kCpu;
  const std::vector<Place> places = PlaceProcesses(run);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].bytes,
            2 * TrainerMemory(run.trainer).total() + ServerMemory(*run.server).total());
}

TEST(PlacementTest, SizesSayWhichGigabytesTheyMean) {
  EXPECT_EQ(*ParseBytes("80G"), int64_t{80} << 30);
  EXPECT_EQ(*ParseBytes("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(*ParseBytes("80GB"), 80'000'000'000);
  EXPECT_EQ(*ParseBytes("1.5T"), int64_t{3} << 39);
  EXPECT_EQ(*ParseBytes("512"), 512);
  for (const char* const bad : {"", "G", "0G", "-1G", "80g", "80Gb", "80 G", "1.2.3G"}) {
    EXPECT_THAT(ParseBytes(bad), FailsWith(absl::StatusCode::kInvalidArgument, "is no size"));
  }
}

}  // namespace
}  // namespace tandem::plan
