// Scores against recorded log-probs, and bf16 against fp32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/refusal.h"
#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

class EngineScoreTest : public EngineFixture {
 protected:
  static std::vector<float> Score(Engine& engine, const std::vector<int32_t>& ids,
                                  float temperature, ScorePath path) {
    const auto scores = engine.Score({{ids}}, {.temperature = temperature, .path = path});
    EXPECT_THAT(scores, IsOk());
    return scores.ok() ? (*scores)[0].logprobs : std::vector<float>();
  }
  static std::vector<int32_t> Whole(const GroupRequest& group, const FinishedCompletion& c) {
    std::vector<int32_t> ids = group.prompt;
    ids.insert(ids.end(), c.token_ids.begin(), c.token_ids.end());
    return ids;
  }
  static std::vector<float> Tail(const std::vector<float>& values, size_t count) {
    return {values.end() - static_cast<int64_t>(count), values.end()};
  }
};

// All paths through this engine give the same bits: alone or in a batch, decode or prefill, in
// steps of any size.
TEST_F(EngineScoreTest, PathsAndCompanyChangeNoBit) {
  for (const ComputeDType dtype : {ComputeDType::kFp32, ComputeDType::kBf16}) {
    EngineOptions options = Fp32();
    options.dtype = dtype;
    const auto wide = Make(options);
    options.max_batch_sequences = 2;
    options.max_step_tokens = 10;
    const auto narrow = Make(options);
    std::vector<ScoreSequence> sequences;
    for (int32_t size : {2, 15, 16, 17, 32, 33, 100}) {
      sequences.push_back({Prompt(size, size), size == 2 ? 0 : size / 2});
    }
    const auto want = wide->Score(sequences, {});
    ASSERT_THAT(want, IsOk());
    for (Engine* engine : {wide.get(), narrow.get()}) {
      for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
        for (const bool alone : {false, true}) {
          const auto got = engine->Score(sequences, {.path = path, .alone = alone});
          ASSERT_THAT(got, IsOk());
          for (size_t s = 0; s < sequences.size(); ++s) {
            EXPECT_EQ((*got)[s].logprobs, (*want)[s].logprobs);
            EXPECT_EQ((*got)[s].entropies, (*want)[s].entropies);
            EXPECT_EQ((*got)[s].margins, (*want)[s].margins);
          }
        }
      }
      EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
    }
  }
}

TEST_F(EngineScoreTest, ThePromptIsNotScoredAndTheRestIsAsWithoutOne) {
  const auto engine = Make(Fp32());
  const std::vector<int32_t> ids = Prompt(20, 1);
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    const auto all = engine->Score({{ids, 0}}, {.path = path});
    const auto one = engine->Score({{ids, 1}}, {.path = path});
    const auto last = engine->Score({{ids, 19}}, {.path = path});
    ASSERT_THAT(all, IsOk());
    EXPECT_EQ((*all)[0].logprobs, (*one)[0].logprobs);
    EXPECT_EQ((*all)[0].logprobs[0], 0);
    EXPECT_LT((*all)[0].logprobs[1], 0);
    std::vector<float> want(20, 0.0f);
    want[19] = (*all)[0].logprobs[19];
    EXPECT_EQ((*last)[0].logprobs, want);
    EXPECT_EQ((*last)[0].kept_mass[18], 0);
    EXPECT_EQ((*last)[0].kept_mass[19], 1);
  }
}

TEST_F(EngineScoreTest, ASampledGroupsRecordComesBackExactly) {
  const SamplingParams samplings[] = {
      {.temperature = 1},
      {.temperature = 0.7f},
      {.temperature = 1.3f, .top_k = 20},
      {.temperature = 0.9f, .top_p = 0.8f},
      {.temperature = 1.1f, .min_p = 0.05f},
      {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .min_p = 0.01f},
  };
  const auto engine = Make(Fp32());
  GroupKey key = 0;
  for (const SamplingParams& sampling : samplings) {
    GroupRequest group = Group(++key, 27, 3, 30);
    group.sampling.temperature = sampling.temperature;
    group.sampling.top_k = sampling.top_k;
    group.sampling.top_p = sampling.top_p;
    group.sampling.min_p = sampling.min_p;
    ASSERT_THAT(engine->Add(group), IsOk());
    const Completions out = RunToEnd(*engine);
    for (const auto& [index, c] : out.at(key)) {
      for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
        const auto scores =
            engine->Score({{Whole(group, c), 27}}, {.temperature = sampling.temperature,
                                                    .top_k = sampling.top_k,
                                                    .top_p = sampling.top_p,
                                                    .min_p = sampling.min_p,
                                                    .path = path});
        ASSERT_THAT(scores, IsOk());
        const SequenceScore& score = (*scores)[0];
        EXPECT_EQ(Tail(score.logprobs, 30), c.behaviour_logprobs);
        EXPECT_EQ(Tail(score.raw_logprobs, 30), c.raw_logprobs);
        EXPECT_EQ(Tail(score.entropies, 30), c.entropies);
        EXPECT_EQ(Tail(score.logprob_second_moments, 30), c.logprob_second_moments);
        EXPECT_EQ(Tail(score.kept_mass, 30), c.kept_mass);
      }
    }
  }
}

TEST_F(EngineScoreTest, ScoresAreTheRecordedBehaviourLogProbs) {
  for (float temperature : {1.0f, 0.7f}) {
    const auto engine = Make(Fp32());
    GroupRequest group = Group(3, 27, 3, 30);
    group.sampling.temperature = temperature;
    ASSERT_THAT(engine->Add(group), IsOk());
    const Completions out = RunToEnd(*engine);
    for (const auto& [index, c] : out.at(3)) {
      const std::vector<int32_t> ids = Whole(group, c);
      for (ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
        const auto behaviour = Tail(Score(*engine, ids, temperature, path), c.token_ids.size());
        EXPECT_LT(LargestGap(behaviour, c.behaviour_logprobs), 1e-4) << "at " << temperature;
        const auto raw = Tail(Score(*engine, ids, 1, path), c.token_ids.size());
        EXPECT_LT(LargestGap(raw, c.raw_logprobs), 1e-4) << "at " << temperature;
      }
    }
  }
}

TEST_F(EngineScoreTest, ScoresDoNotDisturbARunningGroup) {
  const Completions alone = Generate(Fp32(), {Group(1, 20, 2, 12)});
  const auto engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Group(1, 20, 2, 12)), IsOk());
  Completions out;
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE(StepInto(*engine, out));
    Score(*engine, Prompt(50, step), 1, ScorePath::kDecode);
  }
  out = RunToEnd(*engine);
  for (int32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(out.at(1).at(i).behaviour_logprobs, alone.at(1).at(i).behaviour_logprobs);
  }
}

// Scores computed slice by slice, between steps of groups and beside each other, equal scores
// computed at once, and the groups sample what they sample alone.
TEST_F(EngineScoreTest, SlicesBetweenStepsChangeNoBitOfScoresOrGroups) {
  const GroupRequest group = Group(1, 20, 3, 40);
  const Completions alone = Generate(Fp32(), {group});
  const auto engine = Make(Fp32());
  std::vector<ScoreSequence> sequences;
  for (const int32_t size : {250, 3, 40, 200, 2})
    sequences.push_back({Prompt(size, size), size / 3});
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    const ScoreOptions how = {.path = path};
    const auto want = engine->Score(sequences, how);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(engine->Add(group), IsOk());
    auto first = engine->StartScore(sequences, how), second = engine->StartScore(sequences, how);
    ASSERT_THAT(first, IsOk());
    ASSERT_THAT(second, IsOk());
    Completions out;
    int num_slices = 0;
    bool done[2] = {};
    while (!done[0] || !done[1]) {
      if (engine->HasWork()) {
        ASSERT_TRUE(StepInto(*engine, out));
      }
      for (const int i : {0, 1}) {
        if (done[i]) continue;
        const auto progress = (i == 0 ? *first : *second)->Step();
        ASSERT_THAT(progress, IsOk());
        done[i] = *progress == ScoreProgress::kDone;
        ++num_slices;
      }
    }
    EXPECT_GE(num_slices, path == ScorePath::kDecode ? 300 : 4);
    for (ScoreRun* run : {first->get(), second->get()}) {
      const std::vector<SequenceScore> got = run->Take();
      for (size_t s = 0; s < sequences.size(); ++s) {
        EXPECT_EQ(got[s].logprobs, (*want)[s].logprobs);
        EXPECT_EQ(got[s].entropies, (*want)[s].entropies);
        EXPECT_EQ(got[s].mass_above, (*want)[s].mass_above);
      }
    }
    while (engine->HasWork()) ASSERT_TRUE(StepInto(*engine, out));
    ExpectSameBytes(out, alone);
    EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
  }
}

TEST_F(EngineScoreTest, AnInstallEndsTheScoresThatBeganBeforeIt) {
  const auto engine = Make(Fp32());
  auto run = engine->StartScore({{Prompt(200, 1)}}, {.path = ScorePath::kDecode});
  ASSERT_THAT(run, IsOk());
  ASSERT_THAT((*run)->Step(), IsOk());
  auto staged = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), 99));
  ASSERT_THAT(staged, IsOk());
  engine->Install(*std::move(staged), WeightVersion{5});
  EXPECT_THAT((*run)->Step(), FailsWith(absl::StatusCode::kAborted,
                                        "version 5 of the weights was installed while version 0 "
                                        "was scored with: ask again"));
  run->reset();
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
  EXPECT_THAT(engine->Score({{Prompt(20, 1)}}, {}), IsOk());
}

// Groups come first: they take back the blocks that they need, and the score begins those sequences
// again.
TEST_F(EngineScoreTest, AScoreWhoseKvGroupsTakeBackGivesTheSameScoresLater) {
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = 160;
  const auto engine = Make(options);
  const std::vector<ScoreSequence> sequences = {{Prompt(40, 1)}, {Prompt(41, 2)}};
  const auto want = engine->Score(sequences, {});
  const GroupRequest group = Group(1, 20, 2, 60);
  const Completions alone = Generate(options, {group});
  ASSERT_THAT(engine->Add(group), IsOk());
  Completions out;
  ASSERT_TRUE(StepInto(*engine, out));
  auto run = engine->StartScore(sequences, {.path = ScorePath::kDecode});
  ASSERT_THAT(run, IsOk());
  absl::StatusOr<ScoreProgress> progress = (*run)->Step();
  // It grows to 9 of 10 blocks, of which the score was lent 6.
  while (engine->HasWork()) ASSERT_TRUE(StepInto(*engine, out));
  ExpectSameBytes(out, alone);
  EXPECT_EQ(engine->Stats().num_preemptions, 0u);
  while (progress.ok() && *progress != ScoreProgress::kDone) progress = (*run)->Step();
  ASSERT_THAT(progress, IsOk());
  const std::vector<SequenceScore> got = (*run)->Take();
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(got[s].logprobs, (*want)[s].logprobs);
}

TEST_F(EngineScoreTest, AScoreWaitsForTheKvOfAnotherOneAndIsRefusedThatOfGroups) {
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = 64;
  const auto engine = Make(options);
  auto first = engine->StartScore({{Prompt(60, 1)}}, {.path = ScorePath::kDecode});
  auto second = engine->StartScore({{Prompt(60, 2)}}, {});
  ASSERT_THAT((*first)->Step(), IsOk());
  EXPECT_EQ(*(*second)->Step(), ScoreProgress::kWaits);
  while (*(*first)->Step() != ScoreProgress::kDone) {
  }
  EXPECT_EQ(*(*second)->Step(), ScoreProgress::kDone);
}

// Segments reproduce the record of a group whose KV is of several weights, on both paths.
TEST_F(EngineScoreTest, SegmentsReplayAnInstallInTheMiddleOfAGroup) {
  const auto engine = Make(Fp32());
  const GroupRequest group = Group(1, 20, 3, 9);
  ASSERT_THAT(engine->Add(group), IsOk());
  Completions out;
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(StepInto(*engine, out));
  auto before = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), kModelSeed));
  auto now = engine->Stage(tandem::testing::TinyModelTensors(engine->config(), 99));
  engine->Install(*std::move(now), WeightVersion{5});
  out = RunToEnd(*engine);
  std::vector<ScoreSequence> sequences;
  for (int32_t i = 0; i < 3; ++i) {
    const FinishedCompletion& c = out.at(1).at(i);
    ASSERT_EQ(c.version_spans[0].num_tokens, 4);
    // Token 20 + t is predicted at position 19 + t.
    sequences.push_back({Whole(group, c), 20, {{19 + 4, before->get()}}});
  }
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    for (const bool alone : {false, true}) {
      const auto scores = engine->Score(sequences, {.path = path, .alone = alone});
      ASSERT_THAT(scores, IsOk());
      for (int32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(Tail((*scores)[static_cast<size_t>(i)].logprobs, 9),
                  out.at(1).at(i).behaviour_logprobs);
      }
    }
  }
}

// Above a token stand the ids of larger logits; the greedy choice has none.
TEST_F(EngineScoreTest, GapAndMassAboveAreOfTheIdsWithLargerLogits) {
  const auto engine = Make(Fp32());
  const std::vector<int32_t> ids = Prompt(40, 3);
  const auto scores = engine->Score({{ids}}, {.temperature = 0.5f});
  ASSERT_THAT(scores, IsOk());
  const SequenceScore& score = (*scores)[0];
  for (size_t t = 1; t < ids.size(); ++t) {
    const double own = std::exp(double{score.logprobs[t]});
    EXPECT_EQ(score.gaps[t] == 0, score.ranks[t] == 0);
    EXPECT_EQ(score.mass_above[t] == 0, score.ranks[t] == 0);
    EXPECT_LE(own + score.mass_above[t], 1 + 1e-5);
    // Each of them has more than the token and at most exp(gap / T) as much.
    EXPECT_GE(score.mass_above[t], score.ranks[t] * own * (1 - 1e-5));
    EXPECT_LE(score.mass_above[t],
              score.ranks[t] * own * std::exp(double{score.gaps[t]} / 0.5) * (1 + 1e-5));
    // Top-p keeps the token exactly when less than p stands above it.
    const double p = score.mass_above[t];
    if (p < 1e-3 || p > 0.999) continue;
    const auto kept =
        engine->Score({{ids}}, {.temperature = 0.5f, .top_p = static_cast<float>(p * 1.0001)});
    const auto cut =
        engine->Score({{ids}}, {.temperature = 0.5f, .top_p = static_cast<float>(p * 0.9999)});
    EXPECT_TRUE(std::isfinite((*kept)[0].logprobs[t])) << t;
    EXPECT_FALSE(std::isfinite((*cut)[0].logprobs[t])) << t;
  }
}

TEST_F(EngineScoreTest, RefusesWhatItCannotScore) {
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = 64;
  const auto engine = Make(options);
  const auto score = [&](std::vector<int32_t> ids, const ScoreOptions& how = {},
                         int64_t prompt = 0) {
    return engine->Score({{std::move(ids), prompt}}, how);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(score({5}), FailsWith(kInvalid, "sequence 0 has 1 tokens, want 2 to 256"));
  EXPECT_THAT(score(Prompt(257, 1)), FailsWith(kInvalid, "has 257 tokens"));
  EXPECT_THAT(score({5, -1}), FailsWith(kInvalid, "sequence 0 has id -1, want 0 to 49151"));
  EXPECT_THAT(score({5, 6}, {.temperature = 0}), FailsWith(kInvalid, "temperature is 0"));
  EXPECT_THAT(score({5, 6}, {.top_p = 0}), FailsWith(kInvalid, "top_p is 0"));
  EXPECT_THAT(score({5, 6}, {.arithmetic = {.precision = {.head_bits = 25}}}),
              FailsWith(kInvalid, "precision.head_bits is 25"));
  EXPECT_THAT(score({5, 6}, {.arithmetic = {.kv_quantisation = {.bits = 1}}}),
              FailsWith(kInvalid, "kv_quantisation.bits is 1"));
  EXPECT_THAT(engine->Score({{{5, 6}, 0, {{1, nullptr}}}}, {}),
              FailsWith(kInvalid, "sequence 0, segment 0: want weights staged by this engine"));
  EXPECT_THAT(score({5, 6}, {}, 2),
              FailsWith(kInvalid, "sequence 0 of 2 tokens has num_prompt_tokens 2"));
  const absl::Status too_large = score(Prompt(66, 1)).status();
  EXPECT_THAT(too_large, FailsWith(absl::StatusCode::kResourceExhausted,
                                   "66 tokens needs more KV cache than the 64 tokens there are"));
  EXPECT_EQ(rpc::RefusalOf(too_large), rpc::Refusal::kTooLarge);
  EXPECT_THAT(score(Prompt(65, 1)), IsOk());  // the last token is never stored
}

TEST_F(EngineScoreTest, ARunningGroupsBlocksAreNotLentToScores) {
  EngineOptions options = Fp32();
  options.kv_capacity_tokens = 96;
  const auto engine = Make(options);
  ASSERT_THAT(engine->Add(Group(1, 60, 1, 20)), IsOk());  // 60 tokens now: 4 of 6 blocks
  Completions out;
  ASSERT_TRUE(StepInto(*engine, out));
  const absl::Status full = engine->Score({{Prompt(34, 1)}}, {.path = ScorePath::kDecode}).status();
  EXPECT_THAT(full, FailsWith(absl::StatusCode::kResourceExhausted, "no KV cache is free"));
  EXPECT_EQ(rpc::RefusalOf(full), rpc::Refusal::kMemoryFull);
  EXPECT_THAT(engine->Score({{Prompt(33, 1)}}, {.path = ScorePath::kDecode}), IsOk());
}

TEST_F(EngineScoreTest, Bf16ScoresOfDrawnTokensStayCloseToFp32) {
  EngineOptions options = Fp32();
  const auto fp32 = Make(options);
  options.dtype = ComputeDType::kBf16;
  const auto bf16 = Make(options);
  EXPECT_EQ(bf16->weight_dtype(), DType::kBF16);
  const GroupRequest group = Group(1, 20, 4, 60);
  ASSERT_THAT(fp32->Add(group), IsOk());
  const Completions out = RunToEnd(*fp32);
  for (ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    double sum = 0;
    for (const auto& [index, c] : out.at(1)) {
      const auto scores = Tail(Score(*bf16, Whole(group, c), 1, path), 60);
      for (size_t t = 0; t < 60; ++t) {
        sum += std::abs(double{scores[t]} - double{c.behaviour_logprobs[t]});
      }
    }
    EXPECT_LT(sum / 240, 0.05);
    EXPECT_GT(sum / 240, 1e-4);  // it is not fp32 in disguise
  }
}

TEST_F(EngineScoreTest, Bf16GroupsRunToTheEndWithTheirRecordedLogProbs) {
  EngineOptions options = Fp32();
  options.dtype = ComputeDType::kBf16;
  const auto engine = Make(options);
  const GroupRequest group = Group(5, 27, 2, 20);
  ASSERT_THAT(engine->Add(group), IsOk());
  const Completions out = RunToEnd(*engine);
  for (const auto& [index, c] : out.at(5)) {
    const auto scores = Score(*engine, Whole(group, c), 1, ScorePath::kDecode);
    EXPECT_LT(LargestGap(Tail(scores, 20), c.behaviour_logprobs), 0.05);
  }
}

}  // namespace
}  // namespace tandem::rollout
