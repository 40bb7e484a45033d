// Limits on requests, and how completions end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class EngineRefusesTest : public EngineFixture {
 protected:
  EngineRefusesTest() {
    EngineOptions options = Fp32();
    options.kv_capacity_tokens = 160;
    options.max_batch_sequences = 4;
    engine_ = Make(options);
  }

  // A good group after `change`.
  template <typename F>
  absl::Status With(const F& change) {
    GroupRequest group = Group(1, 10, 2, 8);
    change(group);
    const absl::Status status = engine_->Validate(group);
    EXPECT_EQ(engine_->Add(group).ToString(), status.ToString());
    return status;
  }

  // Of this process now.
  static int64_t ResidentBytes() {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, resident = 0;
    file >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineRefusesTest, AGoodGroupIsAccepted) {
  EXPECT_THAT(With([](GroupRequest&) {}), IsOk());
}

TEST_F(EngineRefusesTest, PromptsThatCannotBeServed) {
  EXPECT_THAT(With([](auto& g) { g.prompt.clear(); }),
              FailsWith(kInvalid, "prompt_token_ids is empty"));
  EXPECT_THAT(With([](auto& g) { g.prompt[3] = 49152; }),
              FailsWith(kInvalid, "prompt_token_ids[3] is 49152, want 0 to 49151"));
  EXPECT_THAT(With([](auto& g) { g.prompt[0] = -1; }),
              FailsWith(kInvalid, "prompt_token_ids[0] is -1"));
}

TEST_F(EngineRefusesTest, GroupsLargerThanTheServer) {
  EXPECT_THAT(With([](auto& g) { g.num_completions = 5; }),
              FailsWith(kInvalid, "num_completions is 5, want 1 to max_batch_sequences = 4"));
  EXPECT_THAT(With([](auto& g) { g.num_completions = 0; }),
              FailsWith(kInvalid, "num_completions is 0"));
  EXPECT_THAT(With([](auto& g) { g.sampling.max_new_tokens = 247; }),
              FailsWith(kInvalid, "= 257 is over the context of 256 tokens"));
  // 10 + 100 - 1 = 109 tokens are 7 blocks for each of two completions: 224 tokens.
  EXPECT_THAT(With([](auto& g) { g.sampling.max_new_tokens = 100; }),
              FailsWith(kInvalid, "may need 224 tokens of KV cache, the server has 160"));
}

TEST_F(EngineRefusesTest, SamplingOutOfRange) {
  const auto sampling = [this](auto change) {
    return With([&](GroupRequest& g) { change(g.sampling); });
  };
  EXPECT_THAT(sampling([](auto& s) { s.temperature = -0.5f; }),
              FailsWith(kInvalid, "sampling.temperature is -0.5"));
  // 1 / T would be infinite, and the step that draws would fail for every group.
  EXPECT_THAT(sampling([](auto& s) { s.temperature = 6.4e-44f; }),
              FailsWith(kInvalid, "want 0 (greedy), or 0.001 and more"));
  EXPECT_THAT(sampling([](auto& s) { s.temperature = 0.001f; }), IsOk());
  EXPECT_THAT(sampling([](auto& s) { s.temperature = 3e38f; }), IsOk());
  EXPECT_THAT(sampling([](auto& s) { s.temperature = NAN; }),
              FailsWith(kInvalid, "sampling.temperature is nan"));
  EXPECT_THAT(sampling([](auto& s) { s.top_k = -1; }), FailsWith(kInvalid, "top_k is -1"));
  EXPECT_THAT(sampling([](auto& s) { s.top_p = 0; }), FailsWith(kInvalid, "top_p is 0"));
  EXPECT_THAT(sampling([](auto& s) { s.top_p = 1.5f; }), FailsWith(kInvalid, "top_p is 1.5"));
  EXPECT_THAT(sampling([](auto& s) { s.min_p = 1; }), FailsWith(kInvalid, "min_p is 1"));
  EXPECT_THAT(sampling([](auto& s) { s.max_new_tokens = 0; }),
              FailsWith(kInvalid, "max_new_tokens is 0"));
  EXPECT_THAT(sampling([](auto& s) { s.min_new_tokens = 9; }),
              FailsWith(kInvalid, "min_new_tokens is 9"));
  EXPECT_THAT(sampling([](auto& s) {
                s.stop_token_ids = {5, 49152};
              }),
              FailsWith(kInvalid, "sampling.stop_token_ids[1] is 49152"));
  EXPECT_THAT(sampling([](auto& s) { s.stop_strings.assign(17, "x"); }),
              FailsWith(kInvalid, "stop_strings is 17, want at most 16"));
  EXPECT_THAT(sampling([](auto& s) { s.stop_strings = {""}; }),
              FailsWith(kInvalid, "stop_strings[0] has 0 bytes"));
}

// A machine with too little memory is an error at the start; later, the out-of-memory killer would
// end the process when groups fill the cache.
TEST_F(EngineRefusesTest, ACacheThatTheMachineHasNoMemoryFor) {
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = int64_t{1} << 40;
  EXPECT_THAT(Engine::Create(directory(), options),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "lower engine.kv_capacity_tokens to at most"));
}

TEST_F(EngineRefusesTest, TheCacheIsTakenAtTheStart) {
  // Of a tiny model's token: 2 layers, 2 heads, 8 keys and 16 padded values of 4 bytes.
  constexpr int64_t kTokens = 1 << 17, kTokenBytes = 2 * 2 * (8 + 16) * 4;
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = kTokens;
  const int64_t before = ResidentBytes();
  const auto engine = Make(options);
  EXPECT_GT(ResidentBytes() - before, kTokens * kTokenBytes);
}

// With weight pushes: a machine without memory for one is an error at the start.
TEST_F(EngineRefusesTest, ThePlaceOfTheNextWeightsIsTakenAtTheStart) {
  EngineOptions options = Fp32();
  const auto grown_by_a_push = [&](bool reserve) {
    options.reserve_for_push = reserve;
    const auto engine = Make(options);
    const int64_t before = ResidentBytes();
    const auto staged = engine->Stage(engine->initial_tensors());
    EXPECT_THAT(staged, IsOk());
    return ResidentBytes() - before;
  };
  int64_t weight_bytes = 0;
  for (const HostTensor& tensor : Make(options)->initial_tensors()) {
    weight_bytes += std::ssize(tensor.bytes);
  }
  EXPECT_GT(grown_by_a_push(false), weight_bytes / 2);
  EXPECT_LT(grown_by_a_push(true), weight_bytes / 2);
}

class EngineStopsTest : public EngineFixture {
 protected:
  // The completion of a fixed group of one after `change`.
  template <typename F>
  static FinishedCompletion With(const F& change) {
    GroupRequest group = Group(4, 12, 1, 20);
    change(group.sampling);
    return Generate(Fp32(), {group}).at(4).at(0);
  }
  static FinishedCompletion Free() {
    return With([](SamplingParams&) {});
  }
  static std::vector<int32_t> FirstTokens(const FinishedCompletion& c, size_t count) {
    return {c.token_ids.begin(), c.token_ids.begin() + static_cast<int64_t>(count)};
  }
};

TEST_F(EngineStopsTest, AStopIdEndsACompletionAndIsPartOfIt) {
  const FinishedCompletion free = Free();
  const int32_t stop = free.token_ids[6];
  const auto first = std::find(free.token_ids.begin(), free.token_ids.end(), stop);
  const size_t length = static_cast<size_t>(first - free.token_ids.begin()) + 1;
  const FinishedCompletion c = With([&](auto& s) { s.stop_token_ids = {stop}; });
  EXPECT_EQ(c.token_ids, FirstTokens(free, length));
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_EQ(c.behaviour_logprobs.size(), length);
}

TEST_F(EngineStopsTest, TheTextLeavesTheStopTokenOut) {
  const FinishedCompletion free = Free();
  const FinishedCompletion c = With([&](auto& s) { s.stop_token_ids = {free.token_ids[6]}; });
  const auto engine = Make(Fp32());
  EXPECT_EQ(c.text, *engine->tokenizer().Decode(FirstTokens(c, c.token_ids.size() - 1), false));
}

TEST_F(EngineStopsTest, MinNewTokensForbidsStopIdsBeforeThatManyTokens) {
  const FinishedCompletion free = Free();
  const FinishedCompletion c = With([&](auto& s) {
    s.stop_token_ids = free.token_ids;  // every id it would draw by itself
    s.min_new_tokens = 9;
    s.max_new_tokens = 9;
  });
  EXPECT_EQ(c.token_ids.size(), 9u);
  for (int32_t id : c.token_ids) {
    EXPECT_THAT(free.token_ids, Not(::testing::Contains(id)));
  }
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
  EXPECT_NE(c.behaviour_logprobs, c.raw_logprobs);  // renormalised without the stop ids
}

TEST_F(EngineStopsTest, TheModelsEndTokenEndsACompletionUnlessIgnored) {
  tandem::testing::TempDir directory;
  ModelConfig config = tandem::testing::TinyModelConfig();
  config.eos_token_ids = {Free().token_ids[3]};
  ASSERT_THAT(
      tandem::testing::WriteTinyModel(directory.path(), TANDEM_SOURCE_DIR, config, kModelSeed),
      IsOk());
  auto engine = *Engine::Create(directory.path(), Fp32());
  GroupRequest group = Group(4, 12, 1, 20);
  ASSERT_THAT(engine->Add(group), IsOk());
  EXPECT_EQ(RunToEnd(*engine).at(4).at(0).token_ids, Free().token_ids);
  group.sampling.ignore_eos = false;
  ASSERT_THAT(engine->Add(group), IsOk());
  const FinishedCompletion c = RunToEnd(*engine).at(4).at(0);
  EXPECT_EQ(c.token_ids, FirstTokens(Free(), 4));
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
}

TEST_F(EngineStopsTest, AStopStringCutsTheTextAndEndsTheCompletion) {
  const FinishedCompletion free = Free();
  const auto engine = Make(Fp32());
  // The text of two tokens in the middle: the stop string spans both.
  const std::vector<int32_t> middle = {free.token_ids[5], free.token_ids[6]};
  const std::string stop = *engine->tokenizer().Decode(middle, false);
  const FinishedCompletion c = With([&](auto& s) { s.stop_strings = {"never there", stop}; });
  EXPECT_EQ(c.finish_reason, FinishReason::kStopString);
  EXPECT_EQ(c.token_ids, FirstTokens(free, 7));
  EXPECT_EQ(c.text, *engine->tokenizer().Decode(FirstTokens(free, 5), false));
  EXPECT_THAT(c.text, Not(HasSubstr(stop)));
}

// The bytes might have become a character with the next token, so the matcher had not checked them.
TEST_F(EngineStopsTest, ACompletionThatEndsByLengthHasNoStopStringInItsText) {
  const std::string replacement = "\xEF\xBF\xBD";
  const auto engine = Make(Fp32());
  int32_t lone = 0;  // a byte that is no character
  const auto text = [&](int32_t id) {
    return *engine->tokenizer().Decode(std::vector<int32_t>{id}, false);
  };
  while (text(lone) != replacement) ++lone;
  const FinishedCompletion c = With([&](auto& s) {
    for (int32_t id = 0; id < engine->config().vocab_size; ++id) {
      if (id != lone) s.stop_token_ids.push_back(id);
    }
    s.min_new_tokens = s.max_new_tokens = 3;
    s.stop_strings = {replacement + replacement};
  });
  EXPECT_EQ(c.token_ids, std::vector<int32_t>(3, lone));
  EXPECT_EQ(c.finish_reason, FinishReason::kStopString);
  EXPECT_EQ(c.text, "");
}

TEST_F(EngineStopsTest, StopIdsAreCountedForAsLongAsTheirGroupRuns) {
  const auto engine = Make(Fp32());
  const auto meter = std::make_shared<ByteMeter>();
  GroupRequest group = Group(4, 12, 2, 2);
  group.sampling.stop_token_ids = {3, 5, 3, 3};
  group.charge = ByteCharge(meter);
  ASSERT_THAT(engine->Add(std::move(group)), IsOk());
  EXPECT_EQ(meter->used(), 0);
  ASSERT_THAT(engine->Step(), IsOk());
  const int64_t per_token = meter->used() - 2 * static_cast<int64_t>(sizeof(int32_t));
  EXPECT_EQ(per_token % 29, 0) << "2 ids, and records of 29 bytes";
  while (engine->HasWork()) ASSERT_THAT(engine->Step(), IsOk());
  EXPECT_EQ(meter->used(), 0);
}

TEST_F(EngineStopsTest, GreedyTakesTheSameTokensForEverySeed) {
  const auto greedy = [](uint64_t seed) {
    return With([&](auto& s) {
      s.temperature = 0;
      s.seed = seed;
    });
  };
  const FinishedCompletion c = greedy(1);
  EXPECT_EQ(c.token_ids, greedy(2).token_ids);
  EXPECT_EQ(c.behaviour_logprobs, c.raw_logprobs);
}

TEST_F(EngineStopsTest, TopKOfOneDrawsTheGreedyTokensWithCertainty) {
  const FinishedCompletion greedy = With([](auto& s) { s.temperature = 0; });
  const FinishedCompletion c = With([](auto& s) { s.top_k = 1; });
  EXPECT_EQ(c.token_ids, greedy.token_ids);
  EXPECT_THAT(c.behaviour_logprobs, ::testing::Each(::testing::FloatEq(0.0f)));
  EXPECT_EQ(c.raw_logprobs, greedy.raw_logprobs);
}

// The members are sampled as without it: a completion depends on its index, not on its company.
TEST_F(EngineStopsTest, AGreedyBaselineIsOneMoreMemberOfTheGroupAndChangesNoOther) {
  const EngineOptions invariant = [] {
    EngineOptions options = Fp32();
    options.numerics = Numerics::kInvariant;
    return options;
  }();
  GroupRequest plain = Group(7, 12, 2, 6);
  plain.sampling.top_k = 40;
  plain.sampling.return_support = true;
  GroupRequest with = plain;
  ++with.num_completions;
  with.baseline = GreedyOf(with.sampling);
  GroupRequest greedy = Group(7, 12, 1, 6);
  greedy.sampling.temperature = 0;
  const Completions want = Generate(invariant, {plain}), got = Generate(invariant, {with});
  ExpectSameBytes(got, want);
  const FinishedCompletion& baseline = got.at(7).at(2);
  EXPECT_EQ(baseline.token_ids, Generate(invariant, {greedy}).at(7).at(0).token_ids);
  EXPECT_EQ(baseline.behaviour_logprobs, baseline.raw_logprobs);
  EXPECT_TRUE(baseline.support.empty());
  EXPECT_EQ(got.at(7).size(), 3u);
}

}  // namespace
}  // namespace tandem::rollout
