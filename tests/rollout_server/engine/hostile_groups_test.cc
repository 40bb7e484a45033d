// A group that fails ends alone.
#include "tests/rollout_server/engine/hostile_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

class HostileGroupsTest : public HostileGroupsFixture {
 protected:
  static SamplingParams Sampling(int32_t max_new_tokens) {
    SamplingParams s;
    s.max_new_tokens = max_new_tokens;
    s.stop_token_ids = {kNan, kInfinite};
    return s;
  }
};

TEST_F(HostileGroupsTest, ChangeNoBitOfTheHealthyOnesBesideThem) {
  const uint64_t seed = NewSeed();
  for (uint64_t run = 0; run < 6; ++run) {
    EngineOptions options = Tight();
    options.dtype = run % 2 == 0 ? ComputeDType::kFp32 : ComputeDType::kBf16;
    options.prefix_cache = run < 4;
    ExpectHealthyOnesUnchanged(options, seed + run, 40);
    if (HasFailure()) return;
  }
}

TEST_F(HostileGroupsTest, AGroupFailsWithTheNameOfItsCauseAndTheOthersGoOn) {
  const auto engine = MakePoisoned(Tight());
  ASSERT_THAT(engine->Add({.key = 1, .prompt = {50, kNan, 51}, .sampling = Sampling(4)}), IsOk());
  ASSERT_THAT(engine->Add({.key = 2, .prompt = {50, 52, 51}, .sampling = Sampling(4)}), IsOk());
  const Outcome out = RunAll(*engine, {});
  EXPECT_THAT(out.failed.at(1), FailsWith(absl::StatusCode::kDataLoss,
                                          "the group failed (non_finite_logits) and the server "
                                          "goes on: completion 0, token 0: the model gave 300 NaN "
                                          "logits of 300"));
  EXPECT_TRUE(out.ended.contains(2));
}

// A healthy group shares a prompt up to the poisoned id. The blocks before it are valid for both,
// wherever the chunks end in which the hostile prompt was computed.
TEST_F(HostileGroupsTest, LeaveNothingInTheBlocksOfASharedPrefix) {
  GroupRequest healthy{.key = 2, .sampling = Sampling(3)};
  for (int32_t i = 0; i < 40; ++i) healthy.prompt.push_back(50 + i);
  GroupRequest hostile = healthy;
  hostile.key = 1;
  hostile.prompt[33] = kNan;
  const Outcome want = RunAll(*MakePoisoned(Tight()), {healthy});
  for (const int64_t step_tokens : {4, 10, 26, 28, 29, 31, 40}) {
    EngineOptions options = Tight();
    options.max_batch_sequences = 4;
    options.max_step_tokens = step_tokens;
    const auto after = MakePoisoned(options);
    EXPECT_TRUE(RunAll(*after, {hostile}).failed.contains(1));
    const Outcome got = RunAll(*after, {healthy});
    ASSERT_TRUE(got.ended.contains(2)) << step_tokens << " tokens in a step";
    ExpectSameBytes(got.completions, want.completions);
    EXPECT_EQ(after->Stats().num_prefix_hits, 2u);
  }
}

TEST_F(HostileGroupsTest, BlocksThatHeldNaNServeTheNextGroupAsNewOnesDo) {
  EngineOptions options = Tight();
  options.kv_capacity_tokens = 64;
  options.prefix_cache = false;
  const GroupRequest healthy{.key = 2, .prompt = {60, 61, 62}, .sampling = Sampling(40)};
  GroupRequest hostile{.key = 1, .prompt = std::vector<int32_t>(60, 70), .sampling = Sampling(2)};
  hostile.prompt[0] = kNan;
  const auto alone = MakePoisoned(options), after = MakePoisoned(options);
  EXPECT_TRUE(RunAll(*after, {hostile}).failed.contains(1));
  ExpectSameBytes(RunAll(*after, {healthy}).completions, RunAll(*alone, {healthy}).completions);
}

TEST_F(HostileGroupsTest, AStopOfAllIdsIsRefusedWhileTokensMustBeDrawn) {
  const auto engine = MakePoisoned(Tight());
  GroupRequest group{.key = 1, .prompt = {50}, .sampling = Sampling(4)};
  SamplingParams& s = group.sampling;
  MustDraw(100, s);
  EXPECT_THAT(engine->Validate(group), IsOk());  // one id is left
  s.stop_token_ids.insert(s.stop_token_ids.end(), 5000, 7);
  EXPECT_THAT(engine->Validate(group), IsOk());  // however often the others are named
  s.stop_token_ids.push_back(100);
  const auto refused = FailsWith(absl::StatusCode::kInvalidArgument,
                                 "sampling.min_new_tokens is 4 and the stop ids are all 300 ids");
  EXPECT_THAT(engine->Validate(group), refused);
  EXPECT_THAT(engine->Add(group), refused);
  s.ignore_eos = true;
  EXPECT_THAT(engine->Validate(group), refused);
  s.min_new_tokens = 0;  // then each is a stop when it is drawn
  EXPECT_THAT(engine->Validate(group), IsOk());
  // The model's own end is one of the stop ids, unless it is ignored.
  s.min_new_tokens = 4;
  std::erase(s.stop_token_ids, 2);
  EXPECT_THAT(engine->Validate(group), IsOk());
  s.ignore_eos = false;
  EXPECT_THAT(engine->Validate(group), refused);
}

TEST_F(HostileGroupsTest, AScoreOfNumbersThatAreNotFiniteFailsAloneAndNamesTheToken) {
  const auto engine = MakePoisoned(Tight());
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    const ScoreOptions how = {.path = path};
    const std::vector<ScoreSequence> healthy = {{.ids = {50, 51, 52, 53}}};
    const auto before = engine->Score(healthy, how);
    EXPECT_THAT(
        engine->Score({{.ids = {50, 51, 52}}, {.ids = {50, kNan, 52, 53}}}, how),
        FailsWith(absl::StatusCode::kDataLoss, "sequence 1, token 2: the model gave 300 NaN"));
    const auto after = engine->Score(healthy, how);
    ASSERT_THAT(after, IsOk());
    EXPECT_EQ((*after)[0].logprobs, (*before)[0].logprobs);
    EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
  }
}

// Weights that are broken as a whole fail every group, and the next push makes all well again.
TEST_F(HostileGroupsTest, APushOfNaNFailsTheGroupsAndTheNextPushHeals) {
  const auto engine = MakePoisoned(Tight());
  const ModelConfig& config = engine->config();
  std::vector<HostTensor> broken = tandem::testing::TinyModelTensors(config, kModelSeed);
  const auto values = std::make_shared<std::vector<float>>(config.hidden_size, std::nanf(""));
  for (HostTensor& tensor : broken) {
    if (tensor.spec.name == "model.norm.weight") tensor.bytes = std::as_bytes(std::span(*values));
  }
  const GroupRequest group{.key = 1, .prompt = {50, 51}, .sampling = Sampling(3)};
  const Outcome healthy = RunAll(*engine, {group});
  auto staged = engine->Stage(broken);
  ASSERT_THAT(staged, IsOk());
  engine->Install(*std::move(staged), WeightVersion{1});
  EXPECT_TRUE(RunAll(*engine, {group}).failed.contains(1));
  staged = engine->Stage(PoisonedTensors(config, kModelSeed));
  ASSERT_THAT(staged, IsOk());
  engine->Install(*std::move(staged), WeightVersion{2});
  ExpectSameBytes(RunAll(*engine, {group}).completions, healthy.completions);
}

}  // namespace
}  // namespace tandem::rollout
