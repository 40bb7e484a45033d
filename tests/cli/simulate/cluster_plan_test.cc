#include "cli/simulate/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/simulate/sweep.h"
#include "tests/support/status_matchers.h"

namespace tandem::simulate {
namespace {

using ::tandem::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 10^9 parameters, 10 layers, 1 kv head of 50: 2000 bytes of KV a token.
ModelShape Small() { return {"small", 1e9, 10, 1000, 20, 1, 50, 1}; }

// Round figures, so that times can be worked out by hand: 1e15 FLOP/s, all of it used; 1e12 B/s.
Constants Round() {
  Constants c = ClusterConstants();
  for (const char* fraction : {"train_mfu", "prefill_fraction", "decode_fraction", "hbm_fraction",
                               "link_fraction", "usable_memory_fraction"}) {
    c.Set(fraction, 1);
  }
  c.Set("device_flops", 1e15);
  c.Set("hbm_bytes_per_second", 1e12);
  c.Set("nvlink_bytes_per_second", 400e9);
  c.Set("nic_bytes_per_second", 25e9);
  c.Set("step_overhead_seconds", 0.001);
  return c;
}

Workload Work() {
  return {.prompts = 16,
          .group = 4,
          .prompt_tokens = 1000,
          .lengths = "fixed:1000",
          .max_staleness = 1};
}

TEST(ClusterPlan, ADecodeStepReadsTheWeightsOnceUntilItsProductsBind) {
  const ServerSpeed speed = PlanCluster(Small(), 1, 1, Work(), Round())->pair.server;
  // 2e9 B / 1e12 + 1 ms; 2e9 FLOP a completion / 1e15: 2 us each, as long as the read at 1000.
  EXPECT_NEAR(speed.StepSeconds(1), 0.003, 1e-12);
  EXPECT_NEAR(speed.StepSeconds(1000), 0.003, 1e-12);
  EXPECT_NEAR(speed.StepSeconds(1500), 0.004, 1e-12);
  EXPECT_NEAR(speed.StepSeconds(3000), 0.007, 1e-12);
  EXPECT_NEAR(speed.seconds_per_context_token, 2000 / 1e12, 1e-20);
  EXPECT_NEAR(speed.prefill_tokens_per_second, 500000, 1e-6);
  EXPECT_EQ(speed.kv_tokens, 38'000'000);  // 80 GB less weights, live and staged
}

TEST(ClusterPlan, TensorParallelGpusShareAStepAndExchangeTwiceALayer) {
  ModelShape shape = Small();
  shape.tensor_parallel = 2;
  const ServerSpeed speed = PlanCluster(shape, 2, 2, Work(), Round())->pair.server;
  // Half the read, 1 ms, 20 latencies of 10 us; a completion: 20 x 2 x 1/2 x 2000 B / 400 GB/s =
  // 0.1 us.
  EXPECT_NEAR(speed.StepSeconds(1), 0.001 + 0.001 + 0.0002 + 1e-7, 1e-12);
  EXPECT_NEAR(speed.StepSeconds(101) - speed.StepSeconds(1), 1e-5, 1e-12);
}

TEST(ClusterPlan, ATrainStepIsItsProductsAndAttentionOverTheRanks) {
  const PairPlan pair = PlanCluster(Small(), 4, 4, Work(), Round())->pair;
  const Sampled sampled{.tokens = 64000, .packed_tokens = 80000, .longest = 1000};
  const TrainerSeconds cost = pair.trainer(1, sampled);
  // 20000 tokens a rank x (6e9 + 12 x 10 x 20 x 50 x 1500) / 1e15.
  EXPECT_NEAR(cost.compute, 20000 * (6e9 + 180e6) / 1e15, 1e-12);
  // Two microbatches; 3/4 x 8e9 B / 400 GB/s = 15 ms, 85 % of it hidden in a backward pass of 41
  // ms.
  EXPECT_NEAR(cost.reduce, 0.015 * 0.15, 1e-9);
}

TEST(ClusterPlan, ALongCompletionKeepsOneRankBusy) {
  const PairPlan pair = PlanCluster(Small(), 4, 4, Work(), Round())->pair;
  const TrainerSeconds cost =
      pair.trainer(1, {.tokens = 64000, .packed_tokens = 80000, .longest = 99000});
  EXPECT_NEAR(cost.compute, 100000 * (6e9 + 180e6) / 1e15, 1e-12);
}

TEST(ClusterPlan, APushIsPreparedSentOnceAndProven) {
  Workload work = Work();
  const Sampled sampled{.tokens = 64000, .packed_tokens = 80000, .longest = 1000};
  const auto push = [&](int64_t step) {
    return PlanCluster(Small(), 4, 4, work, Round())->pair.trainer(step, sampled);
  };
  EXPECT_NEAR(push(1).prepare, 0.1, 1e-12);  // 2e9 / 20e9
  EXPECT_NEAR(push(1).install, 0.1, 1e-12);
  EXPECT_NEAR(push(1).send, 1e9 * 0.03 * 2.1 / 25e9, 1e-12);
  EXPECT_NEAR(push(0).send, 2e9 / 25e9, 1e-12);  // the first is dense
  work.delta = false;
  EXPECT_NEAR(push(1).send, 2e9 / 25e9, 1e-12);
  work.stream = true;
  EXPECT_NEAR(push(1).send, 4 * 2e9 / 25e9, 1e-12);  // to each of four servers
}

TEST(ClusterPlan, LinksAreNvlinkInANodeAndEveryGpusPortAcrossNodes) {
  EXPECT_NEAR(LinkBytesPerSecond(8, Round()), 400e9, 1);
  EXPECT_NEAR(LinkBytesPerSecond(16, Round()), 200e9, 1);  // 8 x 25
}

TEST(ClusterPlan, WhatDoesNotFitWithZero1IsShardedAndWhatDoesNotFitThenIsRefused) {
  const Constants c = ClusterConstants();
  Workload work;
  EXPECT_EQ(PlanCluster(Small(), 1, 1, work, c)->sharding, Sharding::kZero1);
  const ModelShape seven = *NamedShape("7b");
  // 10 bytes a parameter stay whole: 76 GB and 10 GB of activations.
  EXPECT_EQ(PlanCluster(seven, 8, 8, work, c)->sharding, Sharding::kFull);
  EXPECT_NEAR(PlanCluster(seven, 8, 8, work, c)->trainer_bytes, 18 * 7.616e9 / 8 + 10e9, 1);
  EXPECT_THAT(PlanCluster(seven, 2, 8, work, c),
              FailsWith(absl::StatusCode::kResourceExhausted, "2 trainer GPUs needs 79 GB"));
}

TEST(ClusterPlan, SplitsWithoutATrainerOrAWholeServerAreRefused) {
  const Constants c = ClusterConstants();
  EXPECT_THAT(PlanCluster(*NamedShape("70b"), 60, 4, {}, c),
              FailsWith(absl::StatusCode::kInvalidArgument, "multiple of 8 rollout GPUs"));
  EXPECT_THAT(PlanCluster(Small(), 0, 8, {}, c),
              FailsWith(absl::StatusCode::kInvalidArgument, "split 0:8"));
  EXPECT_THAT(NamedShape("8b"), FailsWith(absl::StatusCode::kInvalidArgument, "want 7b or 70b"));
}

TEST(ClusterPlan, KvOfPublishedShapesIsWhatTheirConfigurationsGive) {
  EXPECT_EQ(NamedShape("7b")->kv_bytes_per_token(), 57344);    // 2 x 28 x 4 x 128 x 2
  EXPECT_EQ(NamedShape("70b")->kv_bytes_per_token(), 327680);  // 2 x 80 x 8 x 128 x 2
}

TEST(Sweep, SplitsLeaveWholeServersAndATrainer) {
  EXPECT_THAT(TrainerSizes(Small(), 8), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(TrainerSizes(*NamedShape("70b"), 32), ElementsAre(8, 16, 24));
  EXPECT_THAT(TrainerSizes(*NamedShape("70b"), 8), ElementsAre());
}

TEST(Sweep, TheBestSplitHasTheMostTokensASecondAndOfEqualsTheFewestTrainers) {
  SizeResult size;
  for (const double rate : {50.0, 100.0, 100.5, 70.0}) {
    size.splits.push_back(
        {.trainer_gpus = static_cast<int64_t>(size.splits.size()) + 1, .tokens_per_second = rate});
  }
  EXPECT_EQ(size.best()->trainer_gpus, 2);
  EXPECT_EQ(SizeResult{}.best(), nullptr);
}

TEST(Sweep, ASplitTakesItsTimeFromTheSideThatHasTooFewGpus) {
  Workload work = Work();
  work.prompts = 256;
  work.group = 16;
  const SplitResult few_servers = *RunSplit(Small(), 7, 1, work, Round());
  EXPECT_EQ(few_servers.binds, "decode");
  EXPECT_GT(few_servers.rollout_share, 0.95);
  const SplitResult few_trainers = *RunSplit(Small(), 1, 31, work, Round());
  EXPECT_EQ(few_trainers.binds, "train");
  // 4096 x 1000 + 256 x 1000 tokens at 6.18e9 FLOP each and 1e15 a second: 26.9 s, and the push.
  EXPECT_NEAR(few_trainers.step.alone.compute, 4352e3 * 6.18e9 / 1e15, 1e-6);
  EXPECT_NEAR(few_trainers.step.period(),
              few_trainers.step.alone.compute + few_trainers.step.push + 0.05, 1e-6);
  EXPECT_NEAR(few_trainers.tokens_per_second, 4096e3 / few_trainers.step.period(), 1e-6);
}

TEST(Sweep, TheSameSeedGivesTheSameNumbers) {
  Workload work = Work();
  work.lengths = "lognormal:500:0.8:4000";
  const auto json = [&] {
    return ToJson(Small(), work, {*RunSize(Small(), 8, work, Round())}, {});
  };
  EXPECT_EQ(json(), json());
  work.seed = 2;
  const std::string other = json();
  work.seed = 1;
  EXPECT_NE(json(), other);
}

TEST(Sweep, RangesSayWhatAnAssumptionIsWorth) {
  Constants c = Round();
  Workload work = Work();
  const std::vector<RangeEffect> effects = *RunRanges(Small(), 4, work, c);
  ASSERT_FALSE(effects.empty());
  for (const RangeEffect& effect : effects) {
    EXPECT_GT(effect.at_low, 0) << effect.name;
    if (effect.name != "train_mfu") continue;
    EXPECT_LT(effect.at_low, 1);
    EXPECT_EQ(effect.low, 0.3);
  }
  EXPECT_THAT(ToText(effects), HasSubstr("train_mfu"));
}

}  // namespace
}  // namespace tandem::simulate
