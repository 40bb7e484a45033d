// Completions of several turns: what is given between two of them, what stays as it was, and what
// becomes of them when KV runs out or weights change. Turns end by stop ids: every id below 20000.
#include "rollout_server/engine/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rollout_server/engine/forward/token_runner.h"
#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsNan;
using ::testing::SizeIs;

class EngineTurnsTest : public EngineFixture {
 protected:
  static GroupRequest Episode(GroupKey key, int32_t completions, int32_t max_turns,
                              int32_t max_completion_tokens = 100) {
    GroupRequest request = Group(key, 21, completions, 40);
    request.turns =
        TurnLimits{.max_turns = max_turns, .max_completion_tokens = max_completion_tokens};
    for (int32_t id = 0; id < 20000; ++id) request.sampling.stop_token_ids.push_back(id);
    request.sampling.min_new_tokens = 3;
    return request;
  }

  // The ids that answer a turn.
  static std::vector<int32_t> Given(int32_t index, int32_t turn, int32_t size = 5) {
    return Prompt(size, 1000 + 10 * index + turn);
  }

  // Steps until there is nothing to do; the turns that ended, by group and completion.
  using Turns = std::map<std::pair<GroupKey, int32_t>, FinishedTurn>;
  static Turns StepToTurns(Engine& engine, Completions& out) {
    Turns turns;
    while (engine.HasWork()) {
      auto events = engine.Step();
      EXPECT_THAT(events, IsOk());
      if (!events.ok()) break;
      for (EngineEvent& event : *events) {
        if (auto* const turn = std::get_if<TurnFinished>(&event)) {
          turns[{turn->key, turn->turn.index}] = std::move(turn->turn);
        }
      }
      Collect(*std::move(events), out);
    }
    return turns;
  }

  static void Answer(Engine& engine, GroupKey key, const TurnAnswer& answer, Completions& out) {
    auto events = engine.Continue(key, answer);
    ASSERT_THAT(events, IsOk());
    Collect(*std::move(events), out);
  }

  // Plays episodes, whose `turns` have ended, to their end, giving Given after every turn.
  static void PlayFrom(Turns turns, Engine& engine, Completions& out) {
    for (; !turns.empty(); turns = StepToTurns(engine, out)) {
      for (const auto& [name, turn] : turns) {
        Answer(engine, name.first,
               {.index = turn.index, .turn = turn.turn, .token_ids = Given(turn.index, turn.turn)},
               out);
      }
    }
  }

  static Completions Play(Engine& engine) {
    Completions out;
    PlayFrom(StepToTurns(engine, out), engine, out);
    return out;
  }

  static Completions PlayNew(const EngineOptions& options, std::vector<GroupRequest> groups) {
    const std::unique_ptr<Engine> engine = Make(options);
    for (GroupRequest& group : groups) EXPECT_THAT(engine->Add(std::move(group)), IsOk());
    Completions out = Play(*engine);
    EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
    return out;
  }

  // What the engine scores for every token behind the prompt.
  static SequenceScore ScoreOf(Engine& engine, const GroupRequest& request,
                               const FinishedCompletion& completion) {
    ScoreSequence sequence;
    sequence.ids = request.prompt;
    sequence.ids.insert(sequence.ids.end(), completion.token_ids.begin(),
                        completion.token_ids.end());
    sequence.num_prompt_tokens = std::ssize(request.prompt);
    const std::vector<ScoreSequence> sequences = {std::move(sequence)};
    auto scores = engine.Score(sequences, ScoreOptions());
    EXPECT_THAT(scores, IsOk());
    if (!scores.ok()) return {};
    return scores->at(0);
  }
};

TEST_F(EngineTurnsTest, ACompletionOfOneTurnIsBitwiseOneWithoutTurns) {
  GroupRequest plain = Episode(1, 4, 1);
  plain.turns.reset();
  const Completions want = Generate(Fp32(), {plain});
  const Completions got = PlayNew(Fp32(), {Episode(1, 4, 1, 40)});
  ExpectSameBytes(got, want);
  for (const auto& [index, completion] : got.at(1)) {
    EXPECT_THAT(completion.segments, IsEmpty());
    EXPECT_EQ(completion.text, want.at(1).at(index).text);
    EXPECT_EQ(completion.finish_reason, want.at(1).at(index).finish_reason);
  }
}

TEST_F(EngineTurnsTest, GivenIdsStandBetweenTheTurnsWithoutNumbers) {
  const Completions out = PlayNew(Fp32(), {Episode(1, 3, 3)});
  for (const auto& [index, c] : out.at(1)) {
    SCOPED_TRACE(index);
    ASSERT_THAT(c.segments, SizeIs(5));
    EXPECT_EQ(c.num_given, 10);
    EXPECT_THAT(c.kept_mass, SizeIs(c.token_ids.size()));
    size_t t = 0;
    for (size_t s = 0; s < c.segments.size(); ++s) {
      EXPECT_EQ(c.segments[s].given, s % 2 == 1);
      if (s % 2 == 1) {
        EXPECT_EQ(std::vector(c.token_ids.begin() + static_cast<long>(t),
                              c.token_ids.begin() + static_cast<long>(t) + 5),
                  Given(index, static_cast<int32_t>(s / 2) + 1));
      }
      for (int32_t i = 0; i < c.segments[s].num_tokens; ++i, ++t) {
        EXPECT_EQ(std::isnan(c.behaviour_logprobs[t]), c.segments[s].given);
        EXPECT_EQ(std::isnan(c.entropies[t]), c.segments[s].given);
        EXPECT_EQ(c.decode_batch_sizes[t] == 0, c.segments[s].given);
        const bool is_last = i + 1 == c.segments[s].num_tokens;
        if (c.segments[s].given) continue;
        EXPECT_EQ(c.token_ids[t] < 20000, is_last);
      }
    }
    EXPECT_EQ(t, c.token_ids.size());
    EXPECT_THAT(c.version_spans, ElementsAre(VersionSpan{{0}, c.num_sampled()}));
  }
}

TEST_F(EngineTurnsTest, TheNumbersOfLaterTurnsAreThoseOfTheWholeSequence) {
  EngineOptions options = Fp32();
  options.numerics = Numerics::kInvariant;
  const std::unique_ptr<Engine> engine = Make(options);
  const GroupRequest request = Episode(1, 3, 4);
  ASSERT_THAT(engine->Add(request), IsOk());
  const Completions played = Play(*engine);
  for (const auto& [index, c] : played.at(1)) {
    const SequenceScore scores = ScoreOf(*engine, request, c);
    for (size_t t = 0; t < c.token_ids.size(); ++t) {
      if (std::isnan(c.raw_logprobs[t])) continue;
      EXPECT_EQ(c.raw_logprobs[t], scores.raw_logprobs[request.prompt.size() + t])
          << "completion " << index << ", token " << t;
    }
  }
}

TEST_F(EngineTurnsTest, DrawsGoOnWhereTheyStoppedHoweverMuchWasGiven) {
  RunningGroup group;
  group.request = Episode(1, 1, 3);
  auto owned = std::make_unique<Sequence>();
  Sequence& sequence = *owned;
  sequence.group = &group;
  group.sequences.push_back(std::move(owned));
  sequence.completion.token_ids = {30000, 30001, 5};
  CloseTurn(sequence);
  AppendGiven(sequence, {7, 8, 9, 10}, 0);
  StepPlan plan;
  plan.work.push_back({&group, &sequence, 23, 28, true});
  const PlanInputs inputs = BuildInputs(plan);
  ASSERT_THAT(inputs.draws, SizeIs(1));
  EXPECT_EQ(inputs.draws[0].position, 3u);
  EXPECT_NE(inputs.draws[0].forbidden, nullptr) << "min_new_tokens is of each turn";
}

TEST_F(EngineTurnsTest, AnEngineInWhichAllWaitHasNothingToDo) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Episode(1, 2, 2)), IsOk());
  Completions out;
  EXPECT_THAT(StepToTurns(*engine, out), SizeIs(2));
  EXPECT_FALSE(engine->HasWork());
  EXPECT_EQ(engine->Stats().num_groups_running, 1);
  const int64_t held = engine->Stats().kv_used_tokens;
  ASSERT_THAT(engine->Add(Group(2, 30, 2, 4)), IsOk());
  StepToTurns(*engine, out);
  EXPECT_THAT(out.at(2), SizeIs(2));
  EXPECT_EQ(engine->Stats().kv_used_tokens, held) << "kept for those that wait";
  EXPECT_TRUE(engine->Abort(1));
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
}

TEST_F(EngineTurnsTest, WhatATurnIsToldOfIsWhatStandsInTheCompletion) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Episode(1, 1, 2, 60)), IsOk());
  Completions out;
  const FinishedTurn turn = StepToTurns(*engine, out).at({1, 0});
  const auto size = static_cast<int32_t>(turn.token_ids.size());
  EXPECT_EQ(turn.turn, 1);
  EXPECT_EQ(turn.finish_reason, FinishReason::kStop);
  EXPECT_EQ(turn.num_tokens_left, 60 - size - 1);
  Answer(*engine, 1, {.index = 0, .turn = 1, .finish = true}, out);
  const FinishedCompletion& c = out.at(1).at(0);
  EXPECT_EQ(c.token_ids, turn.token_ids);
  EXPECT_EQ(c.text, turn.text);
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_THAT(c.segments, IsEmpty());
  EXPECT_GT(c.wait_seconds, 0);
}

TEST_F(EngineTurnsTest, TheLongestCompletionEndsWhereItsTokensDo) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  GroupRequest request = Episode(1, 1, 5, 30);
  ASSERT_THAT(engine->Add(request), IsOk());
  Completions out;
  const FinishedTurn turn = StepToTurns(*engine, out).at({1, 0});
  const std::vector<int32_t> all_but_one = Given(0, 1, turn.num_tokens_left);
  Answer(*engine, 1, {.index = 0, .turn = 1, .token_ids = all_but_one}, out);
  EXPECT_THAT(StepToTurns(*engine, out), IsEmpty());
  const FinishedCompletion& c = out.at(1).at(0);
  EXPECT_THAT(c.token_ids, SizeIs(30));
  EXPECT_EQ(c.segments.back().num_tokens, 1);
  EXPECT_EQ(c.finish_reason, FinishReason::kLength) << "min_new_tokens keeps stop ids away";
}

TEST_F(EngineTurnsTest, KvLostWhileWaitingChangesNoBit) {
  EngineOptions roomy = Fp32(), tight = Fp32();
  roomy.numerics = tight.numerics = Numerics::kInvariant;
  tight.kv_capacity_tokens = 256;
  const Completions want = PlayNew(roomy, {Episode(1, 2, 3), Group(2, 30, 2, 90)});

  const std::unique_ptr<Engine> engine = Make(tight);
  for (GroupKey key = 100; key < 120; ++key) {  // they use little, so that it overcommits
    GroupRequest brief = Group(key, 5, 1, 100);
    for (int32_t id = 0; id < 49152; ++id) brief.sampling.stop_token_ids.push_back(id);
    ASSERT_THAT(engine->Add(brief), IsOk());
  }
  Completions out;
  StepToTurns(*engine, out);
  out.clear();
  ASSERT_THAT(engine->Add(Episode(1, 2, 3)), IsOk());
  Turns turns = StepToTurns(*engine, out);
  EXPECT_THAT(turns, SizeIs(2));
  ASSERT_THAT(engine->Add(Group(2, 30, 2, 90)), IsOk());  // needs 15 of the 16 blocks
  StepToTurns(*engine, out);
  EXPECT_GT(engine->Stats().num_preemptions, 0u);
  PlayFrom(std::move(turns), *engine, out);
  ExpectSameBytes(out, want);
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
}

TEST_F(EngineTurnsTest, NewWeightsBetweenTwoTurnsLabelWhatIsSampledAfterThem) {
  const auto other = [](Engine& engine) {
    std::vector<HostTensor> tensors =
        tandem::testing::TinyModelTensors(tandem::testing::TinyModelConfig(), 99);
    auto staged = engine.Stage(std::move(tensors));
    EXPECT_THAT(staged, IsOk());
    engine.Install(*std::move(staged), WeightVersion{1});
  };
  for (const InFlight in_flight : {InFlight::kKeep, InFlight::kRecompute}) {
    EngineOptions options = Fp32();
    options.numerics = Numerics::kInvariant;
    options.in_flight = in_flight;
    const std::unique_ptr<Engine> engine = Make(options);
    const GroupRequest request = Episode(1, 2, 2);
    ASSERT_THAT(engine->Add(request), IsOk());
    Completions out;
    const Turns turns = StepToTurns(*engine, out);
    other(*engine);
    EXPECT_FALSE(engine->HasWork()) << "all wait";
    for (const auto& [name, turn] : turns) {
      Answer(*engine, 1, {.index = turn.index, .turn = 1, .token_ids = Given(turn.index, 1)}, out);
    }
    StepToTurns(*engine, out);
    for (const auto& [index, c] : out.at(1)) {
      const int32_t first = c.segments[0].num_tokens, second = c.segments[2].num_tokens;
      EXPECT_THAT(c.version_spans, ElementsAre(VersionSpan{{0}, first}, VersionSpan{{1}, second}));
      const SequenceScore scores = ScoreOf(*engine, request, c);
      const auto begin = static_cast<size_t>(first + 5);
      bool same = true;
      for (size_t t = begin; t < c.token_ids.size(); ++t) {
        same &= c.raw_logprobs[t] == scores.raw_logprobs[request.prompt.size() + t];
      }
      EXPECT_EQ(same, in_flight == InFlight::kRecompute)
          << "keep: the KV of the first turn is that of the weights before";
    }
  }
}

TEST_F(EngineTurnsTest, AnInstallWithPolicyAbortEndsAGroupThatWaits) {
  EngineOptions options = Fp32();
  options.in_flight = InFlight::kAbort;
  const std::unique_ptr<Engine> engine = Make(options);
  ASSERT_THAT(engine->Add(Episode(1, 1, 2)), IsOk());
  Completions out;
  StepToTurns(*engine, out);
  auto staged = engine->Stage(
      tandem::testing::TinyModelTensors(tandem::testing::TinyModelConfig(), kModelSeed));
  ASSERT_THAT(staged, IsOk());
  EXPECT_THAT(engine->Install(*std::move(staged), WeightVersion{1}), ElementsAre(1));
  EXPECT_THAT(engine->Continue(1, {.index = 0, .turn = 1, .token_ids = {5}}),
              FailsWith(absl::StatusCode::kNotFound, "does not run any more"));
}

TEST_F(EngineTurnsTest, AnAnswerThatDoesNotFitIsRefusedAndChangesNothing) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Episode(1, 1, 3, 60)), IsOk());
  Completions out;
  const FinishedTurn turn = StepToTurns(*engine, out).at({1, 0});
  const auto refused = [&](const TurnAnswer& answer, absl::StatusCode code, const char* why) {
    EXPECT_THAT(engine->Continue(1, answer), FailsWith(code, why));
    EXPECT_FALSE(engine->HasWork());
  };
  using Code = absl::StatusCode;
  refused({.index = 7, .turn = 1, .token_ids = {5}}, Code::kNotFound, "no completion 7");
  refused({.index = 0, .turn = 0, .token_ids = {5}}, Code::kFailedPrecondition,
          "turn 0 of completion 0 has not ended: 1 have");
  refused({.index = 0, .turn = 2, .token_ids = {5}}, Code::kFailedPrecondition, "turn 2");
  refused({.index = 0, .turn = 1}, Code::kInvalidArgument, "token_ids is empty");
  refused({.index = 0, .turn = 1, .token_ids = {5}, .finish = true}, Code::kInvalidArgument,
          "finish with 1 token_ids");
  refused({.index = 0, .turn = 1, .token_ids = {5, 49152}}, Code::kInvalidArgument,
          "token_ids[1] is 49152, want 0 to 49151");
  refused({.index = 0, .turn = 1, .token_ids = Given(0, 1, turn.num_tokens_left + 1)},
          Code::kInvalidArgument, "turns.max_completion_tokens = 60");
  const TurnAnswer good = {.index = 0, .turn = 1, .token_ids = {5, 6}};
  Answer(*engine, 1, good, out);
  EXPECT_TRUE(engine->HasWork());
  EXPECT_THAT(engine->Continue(1, {.index = 0, .turn = 1, .token_ids = {5, 7}}),
              FailsWith(Code::kFailedPrecondition, "answered with other token_ids"));
  EXPECT_THAT(engine->Continue(1, {.index = 0, .turn = 1, .finish = true}),
              FailsWith(Code::kFailedPrecondition, "answered with other token_ids"));
  StepToTurns(*engine, out);
  Answer(*engine, 1, good, out);  // a repeated call whose reply was lost
  EXPECT_FALSE(engine->HasWork());
}

TEST_F(EngineTurnsTest, StopStringsAreLookedForInWhatATurnSampled) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  Completions out;
  GroupRequest request = Episode(1, 1, 2);
  ASSERT_THAT(engine->Add(request), IsOk());
  const FinishedTurn plain = StepToTurns(*engine, out).at({1, 0});
  ASSERT_THAT(engine->Abort(1), true);
  // The same draws, with a stop string that only the given text has.
  const std::vector<int32_t> given = {504, 1089};
  auto text = engine->tokenizer().Decode(given, false);
  ASSERT_THAT(text, IsOk());
  request.sampling.stop_strings = {*text};
  ASSERT_THAT(engine->Add(request), IsOk());
  const FinishedTurn turn = StepToTurns(*engine, out).at({1, 0});
  EXPECT_EQ(turn.token_ids, plain.token_ids);
  Answer(*engine, 1, {.index = 0, .turn = 1, .token_ids = given}, out);
  EXPECT_THAT(StepToTurns(*engine, out), IsEmpty());
  const FinishedCompletion& c = out.at(1).at(0);
  EXPECT_NE(c.finish_reason, FinishReason::kStopString);
  EXPECT_NE(c.text.find(turn.text), std::string::npos);
  EXPECT_NE(c.text.find(*text), std::string::npos) << "the text is of all turns";
}

TEST_F(EngineTurnsTest, AGroupThatIsStoppedEarlyGivesWhatItsMembersHave) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Episode(1, 2, 2)), IsOk());
  Completions out;
  const Turns turns = StepToTurns(*engine, out);
  Collect(engine->StopEarly(1), out);
  for (const auto& [name, turn] : turns) {
    EXPECT_EQ(out.at(1).at(turn.index).token_ids, turn.token_ids);
    EXPECT_EQ(out.at(1).at(turn.index).finish_reason, FinishReason::kStoppedEarly);
  }
  EXPECT_EQ(engine->Stats().kv_used_tokens, 0);
}

TEST_F(EngineTurnsTest, StoppedEarlyBeforeTheNextTurnHasATokenItEndsWithTheTurnBefore) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  ASSERT_THAT(engine->Add(Episode(1, 1, 2)), IsOk());
  Completions out;
  const FinishedTurn turn = StepToTurns(*engine, out).at({1, 0});
  Answer(*engine, 1, {.index = 0, .turn = 1, .token_ids = Given(0, 1)}, out);
  Collect(engine->StopEarly(1), out);
  const FinishedCompletion& c = out.at(1).at(0);
  EXPECT_EQ(c.token_ids, turn.token_ids);
  EXPECT_EQ(c.behaviour_logprobs.size(), turn.token_ids.size());
  EXPECT_EQ(c.num_given, 0);
  EXPECT_THAT(c.segments, IsEmpty());
  EXPECT_EQ(c.finish_reason, FinishReason::kStoppedEarly);
}

TEST_F(EngineTurnsTest, LimitsThatMakeNoSenseAreRefused) {
  const std::unique_ptr<Engine> engine = Make(Fp32());
  const auto refused = [&](int32_t turns, int32_t tokens, const char* why) {
    EXPECT_THAT(engine->Validate(Episode(1, 1, turns, tokens)),
                FailsWith(absl::StatusCode::kInvalidArgument, why));
  };
  refused(0, 50, "turns.max_turns is 0, want >= 1");
  refused(2, 0, "turns.max_completion_tokens is 0, want >= 1");
  refused(2, 236, "turns.max_completion_tokens 236 = 257 is over the context of 256");
  EngineOptions options = Fp32();
  options.faults.retokenise = true;
  EXPECT_THAT(Make(options)->Validate(Episode(1, 1, 2)),
              FailsWith(absl::StatusCode::kUnimplemented, "retokenise"));
}

}  // namespace
}  // namespace tandem::rollout
