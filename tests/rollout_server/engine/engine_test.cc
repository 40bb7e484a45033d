#include "rollout_server/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using EngineTest = EngineFixture;

TEST_F(EngineTest, ComputesTheTokensOfAGroupsPromptOnce) {
  const auto engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Group(1, 37, 6, 5)), IsOk());
  const Completions out = RunToEnd(*engine);
  EXPECT_EQ(out.at(1).size(), 6u);
  EXPECT_EQ(engine->Stats().num_prompt_tokens_computed, 37u);
  EXPECT_EQ(engine->Stats().num_tokens_sampled, 30u);
}

TEST_F(EngineTest, TellsWhenAGroupStartsDecodesAndEnds) {
  EngineOptions options = Fp32();
  options.max_batch_sequences = 8;
  options.max_step_tokens = 20;
  const auto engine = Make(options);
  ASSERT_THAT(engine->Add(Group(7, 30, 1, 2)), IsOk());
  std::vector<std::vector<size_t>> kinds;
  while (engine->HasWork()) {
    const auto events = engine->Step();
    ASSERT_THAT(events, IsOk());
    kinds.emplace_back();
    for (const EngineEvent& event : *events) kinds.back().push_back(event.index());
  }
  // GroupStarted 0, GroupDecoding 1, CompletionFinished 2, GroupFinished 3.
  EXPECT_THAT(kinds, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
}

TEST_F(EngineTest, TellsTheFirstTokenOfAStreamAtOnceAndTheOthersByTheInterval) {
  const auto told_with = [this](int32_t interval) {
    const auto engine = Make(Fp32());
    GroupRequest request = Group(3, 9, 2, 10);
    request.stream_interval = interval;
    EXPECT_THAT(engine->Add(std::move(request)), IsOk());
    std::map<int32_t, std::vector<size_t>> sizes;
    std::map<int32_t, std::vector<int32_t>> ids;
    while (engine->HasWork()) {
      const std::vector<EngineEvent> events = engine->Step().value();
      for (const EngineEvent& event : events) {
        if (const auto* const told = std::get_if<TokensDrawn>(&event)) {
          const DrawnTokens& drawn = told->drawn;
          sizes[drawn.index].push_back(drawn.tokens.size());
          for (const DrawnToken& token : drawn.tokens) ids[drawn.index].push_back(token.id);
        } else if (const auto* const finished = std::get_if<CompletionFinished>(&event)) {
          const FinishedCompletion& completion = finished->completion;
          const bool is_told = interval > 0;
          EXPECT_EQ(ids[completion.index], is_told ? completion.token_ids : std::vector<int32_t>());
        }
      }
    }
    EXPECT_EQ(sizes[0], sizes[1]);
    return sizes[0];
  };
  EXPECT_THAT(told_with(0), IsEmpty());
  EXPECT_THAT(told_with(1), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(told_with(4), ElementsAre(1, 4, 4, 1));
  EXPECT_THAT(told_with(9), ElementsAre(1, 9));
  EXPECT_THAT(told_with(64), ElementsAre(1, 9));
}

TEST_F(EngineTest, RecordsOneValueOfEachKindPerToken) {
  const FinishedCompletion c = Generate(Fp32(), {Group(1, 9, 1, 7)}).at(1).at(0);
  EXPECT_EQ(c.token_ids.size(), 7u);
  EXPECT_EQ(c.behaviour_logprobs.size(), 7u);
  EXPECT_EQ(c.behaviour_logprobs, c.raw_logprobs);  // temperature 1, no filter
  EXPECT_EQ(c.entropies.size(), 7u);
  EXPECT_EQ(c.logprob_second_moments.size(), 7u);
  EXPECT_THAT(c.decode_batch_sizes, ElementsAre(1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(c.prefix_cached, Each(false));
  EXPECT_THAT(c.version_spans, ElementsAre(VersionSpan{{0}, 7}));
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
}

TEST_F(EngineTest, TimesTheGapsBetweenTheTokensOfACompletion) {
  const auto group = Generate(Fp32(), {Group(1, 9, 2, 7)}).at(1);
  for (const int32_t i : {0, 1}) {
    const FinishedCompletion& c = group.at(i);
    EXPECT_GT(c.longest_gap_seconds, 0);
    EXPECT_GE(c.decode_seconds, c.longest_gap_seconds);
    EXPECT_LE(c.decode_seconds, 6 * c.longest_gap_seconds) << "seven tokens have six gaps";
  }
  const FinishedCompletion one = Generate(Fp32(), {Group(1, 9, 1, 1)}).at(1).at(0);
  EXPECT_EQ(one.decode_seconds, 0);
  EXPECT_EQ(one.longest_gap_seconds, 0);
}

TEST_F(EngineTest, TheCompletionsOfAGroupDiffer) {
  const auto group = Generate(Fp32(), {Group(1, 20, 4, 12)}).at(1);
  for (int32_t i = 1; i < 4; ++i) EXPECT_NE(group.at(0).token_ids, group.at(i).token_ids);
}

void ExpectSame(const std::map<int32_t, FinishedCompletion>& a,
                const std::map<int32_t, FinishedCompletion>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [index, completion] : a) {
    EXPECT_EQ(completion.token_ids, b.at(index).token_ids);
    EXPECT_THAT(completion.behaviour_logprobs,
                ::testing::Pointwise(::testing::FloatNear(1e-5f), b.at(index).behaviour_logprobs));
  }
}

TEST_F(EngineTest, ACompletionDoesNotDependOnTheOrderOfArrivalOrOnOtherGroups) {
  const Completions alone = Generate(Fp32(), {Group(2, 21, 3, 16)});
  const Completions early = Generate(Fp32(), {Group(2, 21, 3, 16), Group(1, 40, 4, 20)});
  const Completions late =
      Generate(Fp32(), {Group(1, 40, 4, 20), Group(3, 5, 2, 8), Group(2, 21, 3, 16)});
  ExpectSame(alone.at(2), early.at(2));
  ExpectSame(alone.at(2), late.at(2));
  ExpectSame(early.at(1), late.at(1));
}

TEST_F(EngineTest, ACompletionDoesNotDependOnTheSizeOfItsGroup) {
  const Completions one = Generate(Fp32(), {Group(2, 21, 1, 16)});
  const Completions five = Generate(Fp32(), {Group(2, 21, 5, 16)});
  ExpectSame(one.at(2), {{0, five.at(2).at(0)}});
}

TEST_F(EngineTest, AGroupInTwoPartsDrawsWhatOneGroupWould) {
  GroupRequest whole = Group(1, 40, 6, 12), first = whole, rest = whole;
  first.key = 2;
  first.num_completions = 2;
  rest.key = 3;
  rest.first_index = 2;
  rest.num_completions = 4;
  const Completions of_whole = Generate(Fp32(), {whole});
  const Completions parts = Generate(Fp32(), {first, rest});
  for (int32_t index = 0; index < 6; ++index) {
    EXPECT_EQ(parts.at(index < 2 ? 2 : 3).at(index).token_ids, of_whole.at(1).at(index).token_ids);
  }
}

TEST_F(EngineTest, ChunkedPromptsGiveTheSameCompletions) {
  EngineOptions chunked = Fp32();
  chunked.max_batch_sequences = 4;
  chunked.max_step_tokens = 7;
  const auto groups = [] {
    return std::vector<GroupRequest>{Group(1, 50, 2, 10), Group(2, 33, 2, 10)};
  };
  const Completions whole = Generate(Fp32(), groups());
  const Completions pieces = Generate(chunked, groups());
  ExpectSame(whole.at(1), pieces.at(1));
  ExpectSame(whole.at(2), pieces.at(2));
}

TEST_F(EngineTest, AQueueLargerThanTheCacheIsServedInOrder) {
  EngineOptions small = Fp32();
  small.kv_capacity_tokens = 128;
  const auto engine = Make(small);
  std::vector<GroupRequest> groups;
  for (GroupKey key = 1; key <= 6; ++key) groups.push_back(Group(key, 20, 2, 12));
  for (const GroupRequest& group : groups) ASSERT_THAT(engine->Add(group), IsOk());
  const Completions tight = RunToEnd(*engine);
  const Completions roomy = Generate(Fp32(), groups);
  for (GroupKey key = 1; key <= 6; ++key) ExpectSame(tight.at(key), roomy.at(key));
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
}

TEST_F(EngineTest, TheCacheIsEmptyAfterEverything) {
  const auto engine = Make(Fp32());
  for (GroupKey key = 1; key <= 3; ++key) {
    ASSERT_THAT(engine->Add(Group(key, 30, 3, 9)), IsOk());
  }
  Completions out;
  ASSERT_TRUE(StepInto(*engine, out));
  EXPECT_GT(engine->Stats().kv_used_tokens, 0);
  EXPECT_EQ(engine->Stats().num_groups_running, 3);
  RunToEnd(*engine);
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
  EXPECT_EQ(engine->Stats().kv_capacity_tokens, 2048);
  EXPECT_EQ(engine->Stats().num_groups_running, 0);
}

TEST_F(EngineTest, AbortFreesTheCacheAndLeavesOtherGroupsAsTheyWere) {
  const auto engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Group(1, 30, 3, 40)), IsOk());
  Completions out;
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(StepInto(*engine, out));
  ASSERT_THAT(engine->Add(Group(2, 21, 3, 16)), IsOk());
  ASSERT_TRUE(StepInto(*engine, out));
  EXPECT_TRUE(engine->Abort(1));
  EXPECT_FALSE(engine->Abort(1));
  const Completions rest = RunToEnd(*engine);
  EXPECT_FALSE(rest.contains(1));
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
  ExpectSame(rest.at(2), Generate(Fp32(), {Group(2, 21, 3, 16)}).at(2));
}

TEST_F(EngineTest, StopEarlyHandsOutWhatIsDrawnAndFreesTheCache) {
  const auto engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Group(1, 20, 3, 50)), IsOk());
  EXPECT_THAT(engine->StopEarly(1), IsEmpty());  // nothing is drawn yet
  Completions out;
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(StepInto(*engine, out));
  auto events = engine->StopEarly(1);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_TRUE(std::get<GroupFinished>(events.back()).incomplete);
  Collect(std::move(events), out);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out.at(1).at(i).token_ids.size(), 4u);
    EXPECT_EQ(out.at(1).at(i).finish_reason, FinishReason::kStoppedEarly);
  }
  EXPECT_FALSE(engine->HasWork());
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
  EXPECT_THAT(engine->StopEarly(1), IsEmpty());
}

TEST_F(EngineTest, EveryTokenComesWithItsSupportAndItsTopLogprobsOnRequest) {
  GroupRequest request = Group(1, 10, 2, 6);
  request.sampling.top_p = 0.5f;
  request.sampling.return_support = true;
  request.sampling.top_logprobs = 3;
  const auto meter = std::make_shared<ByteMeter>();
  request.charge = ByteCharge(meter, 7);
  const Completions out = Generate(Fp32(), {request});
  const FinishedCompletion& c = out.at(1).at(0);
  ASSERT_EQ(c.support.size(), 6u);
  ASSERT_EQ(c.top.size(), 6u);
  // Per token: 29 bytes of ids and numbers, and three likeliest ids of 8 in a vector of 24.
  int64_t bytes = 0;
  for (size_t t = 0; t < 6; ++t) {
    const std::vector<int32_t> support = c.support[t].ids();
    EXPECT_TRUE(std::ranges::binary_search(support, c.token_ids[t]));
    EXPECT_GE(c.kept_mass[t], 0.5f);
    EXPECT_EQ(c.top[t].size(), std::min<size_t>(3, support.size()));
    bytes += 29 + static_cast<int64_t>(sizeof(PackedSupport) + c.support[t].bytes().size() + 24 +
                                       8 * c.top[t].size());
    EXPECT_GE(c.top[t][0].logprob, c.behaviour_logprobs[t]);
  }
  EXPECT_EQ(c.charge.num_bytes(), bytes);
  EXPECT_EQ(meter->used(), 7 + bytes + out.at(1).at(1).charge.num_bytes())
      << "the test holds the request, the engine nothing";
}

// A group of three with 20 prompt tokens samples four tokens, and then other weights are installed
// as version 5.
class EngineInFlightTest : public EngineFixture {
 protected:
  void InstallMidway(InFlight policy) {
    EngineOptions options = Fp32();
    options.in_flight = policy;
    engine_ = Make(options);
    ASSERT_THAT(engine_->Add(Group(1, 20, 3, 9)), IsOk());
    for (int step = 0; step < 4; ++step) ASSERT_TRUE(StepInto(*engine_, out_));
    auto staged = engine_->Stage(tandem::testing::TinyModelTensors(engine_->config(), 99));
    ASSERT_THAT(staged, IsOk());
    ended_ = engine_->Install(*std::move(staged), WeightVersion{5});
    EXPECT_EQ(engine_->live_version(), WeightVersion{5});
  }

  // Log-probs of a completion under the live weights.
  std::vector<float> ScoreNow(const FinishedCompletion& c) {
    std::vector<int32_t> ids = Prompt(20, 1);
    ids.insert(ids.end(), c.token_ids.begin(), c.token_ids.end());
    const auto scores = engine_->Score({{ids}}, {.path = ScorePath::kDecode});
    EXPECT_THAT(scores, IsOk());
    return {(*scores)[0].logprobs.begin() + 20, (*scores)[0].logprobs.end()};
  }

  std::unique_ptr<Engine> engine_;
  Completions out_;
  std::vector<GroupKey> ended_;
};

TEST_F(EngineInFlightTest, KeepGoesOnOverTheKvOfTheWeightsBefore) {
  ASSERT_NO_FATAL_FAILURE(InstallMidway(InFlight::kKeep));
  EXPECT_THAT(ended_, IsEmpty());
  out_ = RunToEnd(*engine_);
  for (int32_t i = 0; i < 3; ++i) {
    const FinishedCompletion& c = out_.at(1).at(i);
    EXPECT_THAT(c.version_spans, ElementsAre(VersionSpan{{0}, 4}, VersionSpan{{5}, 5}));
    // The later tokens are those of neither set of weights alone.
    const std::vector<float> now = ScoreNow(c);
    EXPECT_NE(std::vector<float>(c.behaviour_logprobs.begin() + 4, c.behaviour_logprobs.end()),
              std::vector<float>(now.begin() + 4, now.end()));
  }
}

TEST_F(EngineInFlightTest, AfterRecomputeTheTokensAreThoseOfTheNewWeightsAlone) {
  ASSERT_NO_FATAL_FAILURE(InstallMidway(InFlight::kRecompute));
  EXPECT_THAT(ended_, IsEmpty());
  out_ = RunToEnd(*engine_);
  for (int32_t i = 0; i < 3; ++i) {
    const FinishedCompletion& c = out_.at(1).at(i);
    EXPECT_THAT(c.version_spans, ElementsAre(VersionSpan{{0}, 4}, VersionSpan{{5}, 5}));
    const std::vector<float> now = ScoreNow(c);
    EXPECT_EQ(std::vector<float>(c.behaviour_logprobs.begin() + 4, c.behaviour_logprobs.end()),
              std::vector<float>(now.begin() + 4, now.end()));
    EXPECT_NE(c.behaviour_logprobs[3], now[3]);
  }
}

TEST_F(EngineInFlightTest, APromptHalfComputedAtAnInstallIsComputedAnewUnderEveryPolicy) {
  EngineOptions options = Fp32();
  options.in_flight = InFlight::kKeep;
  options.max_batch_sequences = 4;
  options.max_step_tokens = 12;  // the prompt of 20 takes two steps
  engine_ = Make(options);
  ASSERT_THAT(engine_->Add(Group(1, 20, 3, 9)), IsOk());
  ASSERT_TRUE(StepInto(*engine_, out_));
  auto staged = engine_->Stage(tandem::testing::TinyModelTensors(engine_->config(), 99));
  engine_->Install(*std::move(staged), WeightVersion{5});
  out_ = RunToEnd(*engine_);
  for (int32_t i = 0; i < 3; ++i) {
    // One span: all tokens were sampled under these weights.
    const FinishedCompletion& c = out_.at(1).at(i);
    EXPECT_THAT(c.version_spans, ElementsAre(VersionSpan{{5}, 9}));
    EXPECT_EQ(c.behaviour_logprobs, ScoreNow(c));
  }
}

TEST_F(EngineInFlightTest, AbortEndsWhatRunsAndKeepsWhatWaits) {
  EngineOptions options = Fp32();
  options.in_flight = InFlight::kAbort;
  options.max_batch_sequences = 2;
  const auto engine = Make(options);
  ASSERT_THAT(engine->Add(Group(1, 10, 2, 9)), IsOk());
  ASSERT_THAT(engine->Add(Group(2, 10, 2, 9)), IsOk());
  Completions out;
  ASSERT_TRUE(StepInto(*engine, out));
  auto staged = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), 99));
  EXPECT_THAT(engine->Install(*std::move(staged), WeightVersion{5}), ElementsAre(1));
  out = RunToEnd(*engine);
  EXPECT_FALSE(out.contains(1));
  EXPECT_THAT(out.at(2).at(0).version_spans, ElementsAre(VersionSpan{{5}, 9}));
}

TEST_F(EngineInFlightTest, APromptAfterAnInstallFindsNothingOfTheWeightsBefore) {
  const auto engine = Make(Fp32());
  const auto run = [&](GroupKey key) {
    GroupRequest request = Group(key, 40, 1, 5);
    request.prompt = Prompt(40, 1);
    request.sampling.seed = 3;
    EXPECT_THAT(engine->Add(std::move(request)), IsOk());
    return RunToEnd(*engine).at(key).at(0);
  };
  run(1);
  EXPECT_TRUE(run(2).prefix_cached[0]);
  auto staged = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), 99));
  engine->Install(*std::move(staged), WeightVersion{5});
  const FinishedCompletion after = run(3);
  EXPECT_FALSE(after.prefix_cached[0]);
  // The same bytes as those of an engine without the cache that always had these weights.
  EngineOptions options = Fp32();
  options.prefix_cache = false;
  const auto fresh = Make(options);
  staged = fresh->Stage(tandem::testing::TinyModelTensors(fresh->config(), 99));
  fresh->Install(*std::move(staged), WeightVersion{5});
  GroupRequest request = Group(3, 40, 1, 5);
  request.prompt = Prompt(40, 1);
  request.sampling.seed = 3;
  ASSERT_THAT(fresh->Add(std::move(request)), IsOk());
  const FinishedCompletion want = RunToEnd(*fresh).at(3).at(0);
  EXPECT_EQ(after.token_ids, want.token_ids);
  EXPECT_EQ(after.behaviour_logprobs, want.behaviour_logprobs);
}

TEST_F(EngineTest, InstalledWeightsAreTheOnesServed) {
  const auto engine = Make(Fp32());
  const std::vector<ScoreSequence> ids = {{Prompt(20, 3)}};
  const auto before = engine->Score(ids, {});
  auto other = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), 99));
  engine->Install(*std::move(other), WeightVersion{1});
  const auto changed = engine->Score(ids, {});
  EXPECT_GT(LargestGap((*before)[0].logprobs, (*changed)[0].logprobs), 0.1);
  auto same = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), kModelSeed));
  engine->Install(*std::move(same), WeightVersion{2});
  EXPECT_EQ((*engine->Score(ids, {}))[0].logprobs, (*before)[0].logprobs);
}

TEST_F(EngineTest, StageRefusesAnotherDtype) {
  EngineOptions options = Fp32();
  options.dtype = ComputeDType::kBf16;
  const auto engine = Make(options);
  EXPECT_THAT(engine->Stage(tandem::testing::TinyModelTensors(engine->config(), 1)),
              FailsWith(absl::StatusCode::kInvalidArgument, "F32"));
}

TEST_F(EngineTest, StageRefusesASetWithATensorMissing) {
  const auto engine = Make(Fp32());
  std::vector<HostTensor> tensors = tandem::testing::TinyModelTensors(engine->config(), 1);
  tensors.pop_back();
  EXPECT_FALSE(engine->Stage(tensors).ok());
}

TEST_F(EngineTest, ServesTheTensorsOfTheFileAsVersionZero) {
  const auto engine = Make(Fp32());
  EXPECT_EQ(engine->live_version(), WeightVersion{0});
  EXPECT_EQ(engine->weight_dtype(), DType::kF32);
  const std::vector<HostTensor> expected =
      tandem::testing::TinyModelTensors(engine->config(), kModelSeed);
  ASSERT_EQ(engine->initial_tensors().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(engine->initial_tensors()[i].spec, expected[i].spec);
    EXPECT_TRUE(std::ranges::equal(engine->initial_tensors()[i].bytes, expected[i].bytes));
  }
  engine->DropInitialTensors();
  EXPECT_TRUE(engine->initial_tensors().empty());
}

}  // namespace
}  // namespace tandem::rollout
