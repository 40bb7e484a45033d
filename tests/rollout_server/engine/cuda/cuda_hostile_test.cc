// A group that fails ends alone, also on a CUDA device.
#include <gtest/gtest.h>

#include "tests/rollout_server/engine/hostile_groups.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

// With graphs and without, and numerics invariant: the batch composition changes no bit of a
// healthy group, even when other groups fail.
class CudaHostileTest : public HostileGroupsFixture {
 protected:
  static EngineOptions Cuda() {
    EngineOptions options = Tight();
    options.device = Device::kCuda;
    options.numerics = Numerics::kInvariant;
    return options;
  }

  static GroupRequest Plain(GroupKey key, std::vector<int32_t> prompt, int32_t max_new_tokens) {
    GroupRequest group{.key = key, .prompt = std::move(prompt)};
    group.sampling.max_new_tokens = max_new_tokens;
    group.sampling.stop_token_ids = {kNan, kInfinite};
    return group;
  }
};

TEST_F(CudaHostileTest, HostileGroupsChangeNoBitOfTheHealthyOnesBesideThem) {
  const uint64_t seed = NewSeed();
  for (const ComputeDType dtype : {ComputeDType::kFp32, ComputeDType::kBf16}) {
    for (const bool graphs : {true, false}) {
      EngineOptions options = Cuda();
      options.dtype = dtype;
      options.cuda_graphs = graphs;
      ExpectHealthyOnesUnchanged(options, seed, 10);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaHostileTest, AGroupFailsWithTheNameOfItsCauseAndTheOthersGoOn) {
  const auto engine = MakePoisoned(Cuda());
  const Outcome out = RunAll(*engine, {Plain(1, {50, kNan, 51}, 4), Plain(2, {50, 52, 51}, 4)});
  EXPECT_THAT(out.failed.at(1),
              FailsWith(absl::StatusCode::kDataLoss,
                        "the group failed (non_finite_logits) and the server goes on: completion "
                        "0, token 0: the model gave a logit that is NaN or +inf"));
  EXPECT_TRUE(out.ended.contains(2));
}

// A block works although its memory comes from a group that left NaN after the end of its context.
TEST_F(CudaHostileTest, BlocksThatHeldNaNServeTheNextGroupAsNewOnesDo) {
  EngineOptions options = Cuda();
  options.kv_capacity_tokens = 64;
  options.prefix_cache = false;
  const GroupRequest healthy = Plain(2, {60, 61, 62}, 20);
  GroupRequest hostile = Plain(1, std::vector<int32_t>(60, 70), 2);
  hostile.prompt[0] = kNan;
  for (const bool invariant : {true, false}) {
    options.numerics = invariant ? Numerics::kInvariant : Numerics::kFast;
    for (const ComputeDType dtype : {ComputeDType::kFp32, ComputeDType::kBf16}) {
      options.dtype = dtype;
      const auto alone = MakePoisoned(options), after = MakePoisoned(options);
      EXPECT_TRUE(RunAll(*after, {hostile}).failed.contains(1));
      ExpectSameBytes(RunAll(*after, {healthy}).completions, RunAll(*alone, {healthy}).completions);
    }
  }
}

TEST_F(CudaHostileTest, AScoreOfNumbersThatAreNotFiniteFailsAloneAndNamesTheToken) {
  const auto engine = MakePoisoned(Cuda());
  const std::vector<ScoreSequence> healthy = {{.ids = {50, 51, 52, 53}}};
  const auto before = engine->Score(healthy, {});
  EXPECT_THAT(
      engine->Score({{.ids = {50, 51, 52}}, {.ids = {50, kNan, 52, 53}}}, {}),
      FailsWith(absl::StatusCode::kDataLoss, "sequence 1, token 2: the model gave a logit"));
  const auto after = engine->Score(healthy, {});
  ASSERT_THAT(after, IsOk());
  EXPECT_EQ((*after)[0].logprobs, (*before)[0].logprobs);
}

}  // namespace
}  // namespace tandem::rollout
