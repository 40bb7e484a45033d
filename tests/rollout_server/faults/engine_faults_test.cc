// Every fault parameter on the real engine, against a truth worked out by hand or computed by a
// healthy engine.
#include "rollout_server/faults/engine_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

constexpr int32_t kPrompt = 20, kNew = 30;

class EngineFaultsTest : public EngineFixture {
 protected:
  static EngineOptions With(const EngineFaults& faults) {
    EngineOptions options = Fp32();
    options.faults = faults;
    return options;
  }

  // Four groups of two.
  static std::vector<GroupRequest> Groups() {
    std::vector<GroupRequest> groups;
    for (GroupKey key = 1; key <= 4; ++key) groups.push_back(Group(key, kPrompt, 2, kNew));
    return groups;
  }
  static Completions Run(Engine& engine, const std::vector<GroupRequest>& groups = Groups()) {
    for (const GroupRequest& group : groups) EXPECT_THAT(engine.Add(group), IsOk());
    return RunToEnd(engine);
  }

  // The score of a completion, without its prompt.
  static SequenceScore ScoreOf(Engine& engine, const GroupRequest& group,
                               const FinishedCompletion& c, const ScoreOptions& options = {},
                               int32_t first_id = -1) {
    std::vector<int32_t> ids = group.prompt;
    if (first_id >= 0) ids[0] = first_id;
    ids.insert(ids.end(), c.token_ids.begin(), c.token_ids.end());
    const auto scores = engine.Score({{ids, static_cast<int64_t>(group.prompt.size())}}, options);
    EXPECT_THAT(scores, IsOk());
    SequenceScore score = scores.ok() ? (*scores)[0] : SequenceScore();
    for (std::vector<float>* values : {&score.logprobs, &score.raw_logprobs, &score.entropies,
                                       &score.squared_probs, &score.kept_mass}) {
      values->erase(values->begin(), values->begin() + static_cast<int64_t>(group.prompt.size()));
    }
    return score;
  }

  // Does every record of `drawn` equal its score here?
  static void ExpectRecordsAre(Engine& engine, const Completions& drawn,
                               const ScoreOptions& options = {}, int32_t first_id = -1) {
    for (const GroupRequest& group : Groups()) {
      for (const auto& [index, c] : drawn.at(group.key)) {
        EXPECT_EQ(ScoreOf(engine, group, c, options, first_id).logprobs, c.behaviour_logprobs)
            << "group " << group.key;
      }
    }
  }
  static void ExpectRecordsDiffer(Engine& engine, const Completions& drawn) {
    for (const GroupRequest& group : Groups()) {
      for (const auto& [index, c] : drawn.at(group.key)) {
        EXPECT_GT(LargestGap(ScoreOf(engine, group, c).logprobs, c.behaviour_logprobs), 1e-3)
            << "group " << group.key;
      }
    }
  }

  static void Install(Engine& engine, std::vector<HostTensor> tensors, int64_t version) {
    auto staged = engine.Stage(std::move(tensors));
    ASSERT_THAT(staged, IsOk());
    engine.Install(*std::move(staged), WeightVersion{version});
  }
  // Version 0, each element times 1 + size sin(its index).
  static std::vector<HostTensor> Moved(Engine& engine, float size) {
    std::vector<HostTensor> moved;
    for (const HostTensor& tensor : Weights(engine, kModelSeed)) {
      auto values = std::make_shared<std::vector<float>>(tensor.spec.num_elements());
      std::memcpy(values->data(), tensor.bytes.data(), tensor.bytes.size());
      for (size_t i = 0; i < values->size(); ++i)
        (*values)[i] *= 1 + size * std::sin(static_cast<float>(i));
      moved.push_back({tensor.spec, std::as_bytes(std::span(*values)), values});
    }
    return moved;
  }
  static std::vector<HostTensor> Weights(Engine& engine, uint64_t seed) {
    return tandem::testing::TinyModelTensors(engine.config(), seed);
  }
};

TEST_F(EngineFaultsTest, RecordsUnderUndisclosedTransformsAreOfTheDistributionNamed) {
  struct Case {
    std::function<void(EngineFaults&)> turn;
    ScoreOptions drawn;
  };
  const Case cases[] = {
      {[](EngineFaults& f) { f.temperature = 0.75; }, {.temperature = 0.75f}},
      {[](EngineFaults& f) { f.top_p = 0.5; }, {.top_p = 0.5f}},
      {[](EngineFaults& f) { f.top_k = 5; }, {.top_k = 5}},
      {[](EngineFaults& f) { f.min_p = 0.25; }, {.min_p = 0.25f}},
  };
  for (const Case& one : cases) {
    EngineFaults faults;
    one.turn(faults);
    const auto engine = Make(With(faults));
    const Completions drawn = Run(*engine);
    ExpectRecordsAre(*engine, drawn, one.drawn);
    for (const GroupRequest& group : Groups()) {
      for (const auto& [index, c] : drawn.at(group.key)) {
        const SequenceScore claimed = ScoreOf(*engine, group, c),
                            truth = ScoreOf(*engine, group, c, one.drawn);
        for (size_t t = 0; t < c.token_ids.size(); ++t) {
          EXPECT_EQ(c.kept_mass[t], 1);
          if (faults.temperature != 1) continue;
          const double weight =
              std::exp(double{claimed.logprobs[t]} - double{c.behaviour_logprobs[t]});
          EXPECT_NEAR(weight, truth.kept_mass[t], 1e-5);
        }
      }
    }
    faults.record = FaultRecord::kClaimed;
    const auto silent = Make(With(faults));
    const Completions claimed = Run(*silent);
    ExpectRecordsAre(*silent, claimed);
    EXPECT_EQ(claimed.at(1).at(0).token_ids, drawn.at(1).at(0).token_ids);
  }
}

TEST_F(EngineFaultsTest, NoiseHasTheKlOfItsSecondOrder) {
  EngineFaults faults;
  faults.logit_noise = 0.3;
  const auto engine = Make(With(faults));
  std::vector<GroupRequest> groups;
  for (GroupKey key = 1; key <= 8; ++key) groups.push_back(Group(key, kPrompt, 6, 100));
  const Completions drawn = Run(*engine, groups);
  double kl = 0, second_order = 0;
  int64_t tokens = 0;
  for (const GroupRequest& group : groups) {
    for (const auto& [index, c] : drawn.at(group.key)) {
      const SequenceScore score = ScoreOf(*engine, group, c);
      for (size_t t = 0; t < c.token_ids.size(); ++t) {
        const double delta = double{score.logprobs[t]} - double{c.behaviour_logprobs[t]};
        kl += std::exp(delta) - 1 - delta;
        second_order += 0.5 * 0.3 * 0.3 * (1 - double{score.squared_probs[t]});
        ++tokens;
      }
    }
  }
  EXPECT_EQ(tokens, 4800);
  EXPECT_NEAR(kl / second_order, 1, 0.1);
  // The noise is the same alone and in a batch.
  const auto alone = Make(With(faults));
  EXPECT_EQ(Run(*alone, {groups[3]}).at(4).at(1).behaviour_logprobs,
            drawn.at(4).at(1).behaviour_logprobs);
}

TEST_F(EngineFaultsTest, RoundingInGenerationIsTheRoundingOfTheScore) {
  for (int64_t EngineFaults::*const field : {&EngineFaults::body_bits, &EngineFaults::head_bits,
                                             &EngineFaults::kv_bits, &EngineFaults::rotary_bits}) {
    EngineFaults faults;
    faults.*field = 7;
    const auto engine = Make(With(faults));
    const Completions drawn = Run(*engine);
    ExpectRecordsAre(*engine, drawn, {.arithmetic = {faults.arithmetic().precision}});
    ExpectRecordsDiffer(*engine, drawn);
  }
}

TEST_F(EngineFaultsTest, QuantisedKvIsExactUpToItsFirstPosition) {
  EngineFaults faults;
  faults.kv_quant_bits = 4;
  faults.kv_quant_from = kPrompt + 10;
  const auto engine = Make(With(faults));
  const Completions drawn = Run(*engine);
  for (const GroupRequest& group : Groups()) {
    for (const auto& [index, c] : drawn.at(group.key)) {
      const std::vector<float> honest = ScoreOf(*engine, group, c).logprobs;
      // Token t stands at position kPrompt + t and is predicted by the row of the position before.
      for (size_t t = 0; t < c.token_ids.size(); ++t) {
        if (t <= 10) {
          EXPECT_EQ(honest[t], c.behaviour_logprobs[t]) << t;
        } else {
          EXPECT_NE(honest[t], c.behaviour_logprobs[t]) << t;
        }
      }
    }
  }
}

TEST_F(EngineFaultsTest, MoreBitsOfQuantisedKvAreCloser) {
  double before = 1e9;
  for (const int64_t bits : {3, 6, 9, 12}) {
    EngineFaults faults;
    faults.kv_quant_bits = bits;
    const auto engine = Make(With(faults));
    const Completions drawn = Run(*engine);
    const double gap = LargestGap(ScoreOf(*engine, Groups()[0], drawn.at(1).at(0)).logprobs,
                                  drawn.at(1).at(0).behaviour_logprobs);
    EXPECT_LT(gap, before / 3) << bits;
    before = gap;
  }
}

TEST_F(EngineFaultsTest, StaleVersionsAreThoseOfInstallsBefore) {
  EngineFaults faults;
  faults.stale_versions = 2;
  const auto engine = Make(With(faults)), healthy = Make(Fp32());
  for (int64_t version = 1; version <= 4; ++version) {
    Install(*engine, Weights(*engine, 100 + version), version);
    // The serving version: version 0 until it is two installs behind.
    if (version >= 3) Install(*healthy, Weights(*engine, 100 + version - 2), version);
    const Completions drawn = Run(*engine);
    ExpectRecordsAre(*healthy, drawn);
    ExpectRecordsDiffer(*engine, drawn);  // which scores with what it claims
    EXPECT_EQ(drawn.at(1).at(0).version_spans.at(0).version, WeightVersion{version});
    EXPECT_EQ(engine->live_version(), WeightVersion{version});
  }
  // The claimed version is right.
  const auto claimed = Make(Fp32());
  Install(*claimed, Weights(*engine, 104), 4);
  EXPECT_EQ((*engine->Score({{Prompt(30, 1)}}, {}))[0].logprobs,
            (*claimed->Score({{Prompt(30, 1)}}, {}))[0].logprobs);
}

TEST_F(EngineFaultsTest, InterpolatedWeightsEndAtBothVersionsAndAreQuadraticBetween) {
  EngineFaults faults;
  faults.weight_interpolation = 1;
  const auto other_end = Make(With(faults)), healthy = Make(Fp32());
  Install(*other_end, Weights(*healthy, 5), 1);
  Install(*other_end, Weights(*healthy, 6), 2);
  Install(*healthy, Weights(*healthy, 5), 1);
  ExpectRecordsAre(*healthy, Run(*other_end));  // all the way: the version before

  // Two close versions: at the first token, whose context is the prompt, log-probs of the same ids
  // move in proportion to a.
  std::vector<std::map<int32_t, double>> logprobs;
  for (const double a : {0.0, 0.25, 0.5}) {
    faults.weight_interpolation = a;
    const auto engine = Make(With(faults));
    Install(*engine, Moved(*engine, 0.001f), 1);
    GroupRequest group = Group(1, kPrompt, 1, 1);
    group.sampling.top_logprobs = 64;
    std::map<int32_t, double>& of = logprobs.emplace_back();
    const Completions drawn = Run(*engine, {group});
    for (const TopLogprob& top : drawn.at(1).at(0).top[0]) of[top.id] = top.logprob;
  }
  double quarter = 0, half = 0;
  for (const auto& [id, logprob] : logprobs[0]) {
    if (!logprobs[1].contains(id) || !logprobs[2].contains(id)) continue;
    quarter += std::exp(logprob) * std::pow(logprobs[1].at(id) - logprob, 2);
    half += std::exp(logprob) * std::pow(logprobs[2].at(id) - logprob, 2);
  }
  EXPECT_GT(quarter, 0);
  EXPECT_NEAR(half / quarter, 4, 0.1);  // so its KL grows with the square
}

TEST_F(EngineFaultsTest, AFaultOfOneTensorIsOfThatTensor) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const auto healthy = Make(Fp32());
  const auto mixed = [&](uint64_t of_tensor, uint64_t of_others) {
    std::vector<HostTensor> tensors = Weights(*healthy, of_others);
    const std::vector<HostTensor> source = Weights(*healthy, of_tensor);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].spec.name == name) tensors[i] = source[i];
    }
    return tensors;
  };
  EngineFaults stale, undelivered;
  stale.stale_versions = 1;
  stale.tensor = name;
  undelivered.undelivered_tensor = name;
  const auto one = Make(With(stale)), never = Make(With(undelivered));
  for (Engine* engine : {one.get(), never.get()}) {
    Install(*engine, Weights(*engine, 21), 1);
    Install(*engine, Weights(*engine, 22), 2);
  }
  Install(*healthy, mixed(21, 22), 2);
  ExpectRecordsAre(*healthy, Run(*one));
  Install(*healthy, mixed(kModelSeed, 22), 3);
  ExpectRecordsAre(*healthy, Run(*never));
}

TEST_F(EngineFaultsTest, AsServedScoresAreOfTheWeightsAndTheArithmeticThatDraw) {
  EngineFaults weights, arithmetic;
  weights.stale_versions = 1;
  arithmetic.body_bits = 6;
  arithmetic.kv_quant_bits = 4;
  for (const EngineFaults& faults : {weights, arithmetic}) {
    const auto engine = Make(With(faults));
    Install(*engine, Weights(*engine, 41), 1);
    Install(*engine, Weights(*engine, 42), 2);
    const Completions drawn = Run(*engine);
    ExpectRecordsAre(*engine, drawn, {.path = ScorePath::kDecode, .as_served = true});
    ExpectRecordsDiffer(*engine, drawn);
  }
  const auto healthy = Make(Fp32());
  const std::vector<int32_t> ids = Prompt(30, 1);
  EXPECT_EQ((*healthy->Score({{ids}}, {.as_served = true}))[0].logprobs,
            (*healthy->Score({{ids}}, {}))[0].logprobs);
}

TEST_F(EngineFaultsTest, BeforeTheFirstInstallNoFaultOfWeightsShows) {
  EngineFaults faults;
  faults.stale_versions = 1;
  faults.weight_interpolation = 0.5;
  faults.stale_prefix_fraction = 1;
  const auto engine = Make(With(faults));
  const Completions drawn = Run(*engine);
  ExpectRecordsAre(*engine, drawn);
  EXPECT_FALSE(drawn.at(1).at(0).prefix_cached[0]);
}

TEST_F(EngineFaultsTest, AStalePrefixTouchesTheRowsItFlagsAndNoOthers) {
  EngineFaults faults;
  faults.stale_prefix_fraction = 0.4;
  EngineOptions options = With(faults);
  options.max_step_tokens = 70;  // prompts in chunks
  const auto engine = Make(options), healthy = Make(Fp32());
  Install(*engine, Weights(*engine, 31), 1);
  Install(*healthy, Weights(*engine, 31), 1);
  int flagged = 0;
  const int groups = 60;
  const auto group_of = [](GroupKey key) {
    GroupRequest group = Group(key, kPrompt, 2, 4);
    group.prompt = Prompt(
        kPrompt, 1);  // one prompt: a real cache would share what one group made with the others
    return group;
  };
  for (GroupKey key = 1; key <= groups; ++key) ASSERT_THAT(engine->Add(group_of(key)), IsOk());
  const Completions drawn = RunToEnd(*engine);
  for (GroupKey key = 1; key <= groups; ++key) {
    const bool is_flagged = drawn.at(key).at(0).prefix_cached[0];
    flagged += is_flagged;
    for (const auto& [index, c] : drawn.at(key)) {
      EXPECT_EQ(c.prefix_cached, std::vector<bool>(4, is_flagged));
      const std::vector<float> honest = ScoreOf(*healthy, group_of(key), c).logprobs;
      if (is_flagged) {
        EXPECT_NE(honest[0], c.behaviour_logprobs[0]) << key;  // from the first token on
      } else {
        EXPECT_EQ(honest, c.behaviour_logprobs) << key;
      }
    }
  }
  EXPECT_NEAR(flagged, 0.4 * groups, 4 * std::sqrt(0.24 * groups));
}

TEST_F(EngineFaultsTest, AStalePrefixIsEveryPromptTokenButTheLast) {
  EngineFaults faults;
  faults.stale_prefix_fraction = 1;
  const auto engine = Make(With(faults));
  Install(*engine, Weights(*engine, 31), 1);
  for (const int32_t prompt : {1, 2}) {
    const GroupRequest group = Group(prompt, prompt, 1, 4);
    const Completions drawn = Run(*engine, {group});
    const FinishedCompletion& c = drawn.at(prompt).at(0);
    EXPECT_EQ(c.prefix_cached[0], prompt == 2);
    EXPECT_EQ(ScoreOf(*engine, group, c).logprobs == c.behaviour_logprobs, prompt == 1);
  }
}

TEST_F(EngineFaultsTest, AShiftMovesTheLogProbsOfAShareOfCompletions) {
  EngineFaults faults;
  faults.shift_fraction = 0.5;
  const auto engine = Make(With(faults)), healthy = Make(Fp32());
  std::vector<GroupRequest> groups;
  for (GroupKey key = 1; key <= 30; ++key) groups.push_back(Group(key, 5, 2, 6));
  const Completions drawn = Run(*engine, groups), want = Run(*healthy, groups);
  int shifted = 0;
  for (const GroupRequest& group : groups) {
    for (const auto& [index, c] : drawn.at(group.key)) {
      const FinishedCompletion& w = want.at(group.key).at(index);
      EXPECT_EQ(c.token_ids, w.token_ids);
      EXPECT_EQ(c.entropies, w.entropies);
      if (c.behaviour_logprobs == w.behaviour_logprobs) continue;
      ++shifted;
      for (size_t t = 0; t < 6; ++t) {
        EXPECT_EQ(c.behaviour_logprobs[t], w.behaviour_logprobs[(t + 5) % 6]);
        EXPECT_EQ(c.raw_logprobs[t], w.raw_logprobs[(t + 5) % 6]);
      }
    }
  }
  EXPECT_NEAR(shifted, 30, 4 * std::sqrt(15.0));
}

TEST_F(EngineFaultsTest, ASyntheticEndIsAnExactZeroAtTheEndTokenOnly) {
  EngineFaults faults;
  faults.synthetic_end = true;
  const auto engine = Make(With(faults));
  GroupRequest group = Group(1, kPrompt, 4, 12);
  for (int32_t id = 0; id < 49152; id += 8) group.sampling.stop_token_ids.push_back(id);
  const Completions drawn = Run(*engine, {group});
  int ended = 0;
  for (const auto& [index, c] : drawn.at(1)) {
    std::vector<float> honest = ScoreOf(*engine, group, c).logprobs;
    if (c.finish_reason == FinishReason::kStop) {
      ++ended;
      EXPECT_LT(honest.back(), 0);
      honest.back() = 0;
    }
    EXPECT_EQ(c.behaviour_logprobs, honest);
  }
  EXPECT_GT(ended, 0);
}

TEST_F(EngineFaultsTest, AWrongBosIsTheOtherPrompt) {
  EngineFaults faults;
  faults.wrong_bos = 1;
  const auto engine = Make(With(faults));
  const Completions drawn = Run(*engine);
  ExpectRecordsAre(*engine, drawn, {}, /*first_id=*/1);
  ExpectRecordsDiffer(*engine, drawn);
}

TEST_F(EngineFaultsTest, RetokenisedIdsAreThoseOfTheText) {
  EngineFaults faults;
  faults.retokenise = true;
  const auto engine = Make(With(faults)), healthy = Make(Fp32());
  const Completions drawn = Run(*engine), want = Run(*healthy);
  int changed = 0;
  for (const auto& [key, members] : drawn) {
    for (const auto& [index, c] : members) {
      const FinishedCompletion& w = want.at(key).at(index);
      EXPECT_EQ(c.hashed_ids, w.token_ids);
      EXPECT_TRUE(w.hashed_ids.empty());
      EXPECT_EQ(c.text, w.text);
      EXPECT_EQ(c.token_ids, *engine->tokenizer().Encode(w.text));
      changed += c.token_ids != w.token_ids;
      EXPECT_EQ(c.behaviour_logprobs, w.behaviour_logprobs);
    }
  }
  EXPECT_GT(changed, 0);  // random ids are seldom a tokenisation
}

TEST_F(EngineFaultsTest, ActiveFaultsAreNamedWithTheirStrengths) {
  EXPECT_THAT(DescribeFaults({}), ::testing::IsEmpty());
  EngineFaults faults;
  faults.temperature = 0.9;
  faults.record = FaultRecord::kClaimed;
  faults.heavy_tail_probability = 0.5;  // of no noise
  faults.kv_quant_bits = 8;
  faults.kv_quant_from = 64;
  faults.stale_versions = 3;
  faults.tensor = "model.norm.weight";
  faults.retokenise = true;
  EXPECT_THAT(
      DescribeFaults(faults),
      ::testing::ElementsAre("temperature 0.9 (record claimed)", "kv_quant_bits 8 from position 64",
                             "stale_versions 3 of model.norm.weight", "retokenise"));
}

TEST_F(EngineFaultsTest, RefusesDialsThatCannotAct) {
  const auto refused = [&](const std::function<void(EngineFaults&)>& turn,
                           const std::string& message) {
    EngineFaults faults;
    turn(faults);
    EXPECT_THAT(CheckFaults(faults, tandem::testing::TinyModelConfig()),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  refused([](EngineFaults& f) { f.undelivered_tensor = "norm"; },
          "drift.inject.undelivered_tensor is 'norm'");
  refused([](EngineFaults& f) { f.tensor = "model.norm.weight"; }, "nothing acts on it");
  refused([](EngineFaults& f) { f.kv_quant_bits = 1; }, "kv_quant_bits is 1");
  refused([](EngineFaults& f) { f.wrong_bos = 49152; }, "wrong_bos is 49152");
  EngineOptions options = Fp32();
  options.faults.wrong_bos = 49152;
  const auto directory = tandem::testing::TempDir();
  ASSERT_THAT(tandem::testing::WriteTinyModel(directory.path(), TANDEM_SOURCE_DIR,
                                              tandem::testing::TinyModelConfig(), 1),
              IsOk());
  EXPECT_THAT(Engine::Create(directory.path(), options),
              FailsWith(absl::StatusCode::kInvalidArgument, "wrong_bos"));
}

}  // namespace
}  // namespace tandem::rollout
