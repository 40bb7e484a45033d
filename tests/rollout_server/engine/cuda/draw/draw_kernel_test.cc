// Sampling on the device against SampleToken, over settings, vocabularies and shapes of
// distributions.
#include "rollout_server/engine/cuda/draw/draw_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "rollout_server/engine/sampling/philox.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/schedule/stop_ids.h"
#include "tests/support/device/device_memory.h"

namespace tandem::rollout::cuda {
namespace {

using tandem::cuda::DeviceArray;
using tandem::cuda::Normal;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Outcome {
  std::vector<Drawn> drawn;
  std::vector<uint32_t> kept;  // [D, KeptWords(V)]
  std::vector<TopId> top;      // [D, kMostTop]
  std::vector<Scored> scored;
};

constexpr uint32_t kUntouched = 0xabcdef01u;

Outcome Draws(const std::vector<float>& logits, int64_t vocabulary, const std::vector<Draw>& draws,
              const std::vector<int32_t>& forbidden = {}) {
  const auto num = static_cast<int64_t>(draws.size());
  const DeviceArray<float> d_logits(logits);
  const DeviceArray<Draw> d_draws(draws);
  const DeviceArray<int32_t> d_forbidden(forbidden);
  const DeviceArray<Drawn> drawn(draws.size(), Drawn{.id = -7});
  const DeviceArray<uint32_t> kept(draws.size() * static_cast<size_t>(KeptWords(vocabulary)),
                                   kUntouched);
  const DeviceArray<TopId> top(draws.size() * kMostTop, TopId{.id = -7});
  const DeviceArray<Scored> scored(draws.size());
  // The contents of the workspace must not matter.
  const DeviceArray<uint8_t> workspace(static_cast<size_t>(DrawWorkspaceBytes(vocabulary, num)),
                                       0xff);
  DrawTokens({.logits = d_logits.data(),
              .vocabulary = vocabulary,
              .draws = d_draws.data(),
              .num_draws = num,
              .forbidden = d_forbidden.data(),
              .drawn = drawn.data(),
              .kept = kept.data(),
              .top = top.data(),
              .scored = scored.data(),
              .workspace = workspace.data()},
             nullptr);
  return {drawn.Read(), kept.Read(), top.Read(), scored.Read()};
}

std::vector<Drawn> DrawAll(const std::vector<float>& logits, int64_t vocabulary,
                           const std::vector<Draw>& draws,
                           const std::vector<int32_t>& forbidden = {}) {
  return Draws(logits, vocabulary, draws, forbidden).drawn;
}

// Row `row` of `kept`.
std::vector<int32_t> KeptAt(const Outcome& outcome, int64_t vocabulary, size_t row) {
  const auto words = static_cast<size_t>(KeptWords(vocabulary));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < words * 32; ++i) {
    if (outcome.kept[row * words + i / 32] >> (i % 32) & 1) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

SamplingParams ParamsOf(const Draw& draw) {
  SamplingParams params;
  params.temperature = draw.temperature;
  params.top_k = draw.top_k;
  params.top_p = draw.top_p;
  params.min_p = draw.min_p;
  params.return_support = true;
  return params;
}

// Is `uniform` so near the border between two ids that rounding may choose either? Calls
// SampleToken with uniforms a little smaller and larger.
bool NearBorder(const std::vector<float>& row, const SamplingParams& params,
                const std::vector<int32_t>& forbidden, double uniform, int32_t id) {
  for (const double moved : {uniform - 2e-6, uniform + 2e-6}) {
    const auto token = SampleToken(row, params, forbidden, std::clamp(moved, 1e-16, 1 - 1e-16));
    if (token.ok() && token->id == id) return true;
  }
  return false;
}

void ExpectSameAsCpu(const std::vector<float>& logits, int64_t vocabulary,
                     const std::vector<Draw>& draws, const std::vector<int32_t>& forbidden = {}) {
  const std::vector<Drawn> drawn = DrawAll(logits, vocabulary, draws, forbidden);
  for (size_t i = 0; i < draws.size(); ++i) {
    const Draw& draw = draws[i];
    SCOPED_TRACE(::testing::Message()
                 << "draw " << i << ": temperature " << draw.temperature << ", top_k " << draw.top_k
                 << ", top_p " << draw.top_p << ", min_p " << draw.min_p);
    const std::vector<float> row(logits.begin() + draw.row * vocabulary,
                                 logits.begin() + (draw.row + 1) * vocabulary);
    const std::vector<int32_t> own(forbidden.begin() + draw.first_forbidden,
                                   forbidden.begin() + draw.first_forbidden + draw.num_forbidden);
    const double uniform = UniformDraw(draw.seed, draw.index, draw.position);
    const auto want = SampleToken(row, ParamsOf(draw), own, uniform);
    ASSERT_TRUE(want.ok()) << want.status();
    ASSERT_EQ(drawn[i].state, DrawState::kDrawn);
    EXPECT_NEAR(drawn[i].entropy, want->entropy, 1e-4);
    EXPECT_NEAR(drawn[i].logprob_second_moment, want->logprob_second_moment,
                1e-4 * (1 + want->logprob_second_moment));
    EXPECT_NEAR(drawn[i].kept_mass, want->kept_mass, 2e-6);
    if (drawn[i].id != want->id) {
      EXPECT_TRUE(NearBorder(row, ParamsOf(draw), own, uniform, drawn[i].id))
          << drawn[i].id << ", SampleToken drew " << want->id;
      continue;
    }
    EXPECT_NEAR(drawn[i].behaviour_logprob, want->behaviour_logprob, 4e-6);
    EXPECT_NEAR(drawn[i].raw_logprob, want->raw_logprob, 4e-6);
  }
}

// One draw of each setting from each of `rows` rows.
std::vector<Draw> Settings(int32_t rows) {
  std::vector<Draw> draws;
  for (int32_t row = 0; row < rows; ++row) {
    const auto add = [&](float temperature, int32_t top_k, float top_p, float min_p) {
      const auto n = static_cast<uint32_t>(draws.size());
      draws.push_back({.seed = 0x123456789abcdefull * (n + 1),
                       .index = n,
                       .position = 3 * n,
                       .row = row,
                       .temperature = temperature,
                       .top_k = top_k,
                       .top_p = top_p,
                       .min_p = min_p});
    };
    add(1, 0, 1, 0);
    add(0.6f, 0, 1, 0);
    add(1.7f, 0, 1, 0);
    add(0, 0, 1, 0);
    add(1, 5, 1, 0);
    add(1, 1, 1, 0);
    add(1, 1000000, 1, 0);
    add(1, 0, 0.9f, 0);
    add(0.8f, 0, 0.3f, 0);
    add(1, 0, 1, 0.1f);
    add(1.3f, 40, 0.95f, 0.02f);
  }
  return draws;
}

TEST(DrawTokens, GivesTheCpusTokensAndRecords) {
  for (const int64_t vocabulary : {50, 1000, 5003, 49152}) {
    for (const float spread : {0.1f, 3.0f}) {
      SCOPED_TRACE(::testing::Message() << vocabulary << " ids, spread " << spread);
      const int32_t rows = vocabulary > 10000 ? 1 : 3;
      ExpectSameAsCpu(Normal(rows * vocabulary, 5, spread), vocabulary, Settings(rows));
    }
  }
}

TEST(DrawTokens, TakesItsUniformsFromSeedCompletionAndPosition) {
  const std::vector<float> logits = {0, -1, 2, -kInfinity, 1};
  std::vector<Draw> draws;
  for (uint32_t i = 0; i < 100; ++i)
    draws.push_back({.seed = 11, .index = i / 10, .position = i % 10});
  ExpectSameAsCpu(logits, 5, draws);
}

TEST(DrawTokens, KeepsTiesAsTheCpuDoes) {
  std::vector<float> logits = Normal(300, 3);
  for (const int i : {7, 50, 120, 121, 299}) logits[i] = 6.5f;
  for (const int i : {8, 51, 122}) logits[i] = 6.0f;
  std::vector<Draw> draws;
  for (uint32_t i = 0; i < 6; ++i) {
    draws.push_back({.seed = i, .top_k = 2});
    draws.push_back({.seed = i, .top_p = 0.1f});
    draws.push_back({.seed = i, .top_p = 0.35f});
    draws.push_back({.seed = i, .top_k = 6, .top_p = 0.8f});
    draws.push_back({.seed = i, .temperature = 0});
  }
  ExpectSameAsCpu(logits, 300, draws);
}

// 400 ids take 13 words, so a longer list is stored as a bit set.
TEST(DrawTokens, DoesNotDrawWhatBitsForbid) {
  const std::vector<float> logits = Normal(2 * 400, 12);
  const SamplingParams stops = {.stop_token_ids =
                                    [] {
                                      std::vector<int32_t> ids(397);
                                      std::iota(ids.begin(), ids.end(), 1);
                                      return ids;
                                    }(),
                                .ignore_eos = true};
  const StopIds all_but_three(stops, {}, 400);
  ASSERT_TRUE(all_but_three.is_bits());
  std::vector<int32_t> words = {-1};  // of another draw
  words.insert(words.end(), all_but_three.words().begin(), all_but_three.words().end());
  std::vector<Draw> as_bits, as_list;
  for (uint32_t i = 0; i < 60; ++i) {
    Draw draw = {.seed = 4, .index = i, .row = static_cast<int32_t>(i % 2)};
    if (i % 3 == 1) draw.top_p = 0.6f;
    if (i % 3 == 2) draw.temperature = 0;
    draw.first_forbidden = 1;
    draw.num_forbidden = kForbiddenBits;
    as_bits.push_back(draw);
    draw.first_forbidden = 0;
    draw.num_forbidden = 397;
    as_list.push_back(draw);
  }
  const std::vector<Drawn> drawn = DrawAll(logits, 400, as_bits, words);
  const std::vector<Drawn> want = DrawAll(logits, 400, as_list, all_but_three.rising());
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(std::memcmp(&drawn[i], &want[i], sizeof(Drawn)), 0) << i;
    EXPECT_TRUE(drawn[i].id == 0 || drawn[i].id >= 398) << drawn[i].id;
  }
}

TEST(DrawTokens, DoesNotDrawWhatIsForbidden) {
  std::vector<float> logits = Normal(400, 3);
  logits[13] = 9;
  logits[14] = 8;
  const std::vector<int32_t> forbidden = {5, 13, 14};
  std::vector<Draw> draws = Settings(1);
  for (Draw& draw : draws) {
    draw.first_forbidden = 1;
    draw.num_forbidden = 2;
  }
  ExpectSameAsCpu(logits, 400, draws, forbidden);
  for (const Drawn& one : DrawAll(logits, 400, draws, forbidden)) {
    EXPECT_NE(one.id, 13);
    EXPECT_NE(one.id, 14);
  }
}

TEST(DrawTokens, TellsWhichIdsTheFiltersLeft) {
  for (const int64_t vocabulary : {5, 64, 1000, 5003}) {
    SCOPED_TRACE(vocabulary);
    const std::vector<float> logits = Normal(static_cast<size_t>(vocabulary), 9, 2);
    const std::vector<int32_t> forbidden = {1, 3};
    std::vector<Draw> draws = Settings(1);
    for (size_t i = 0; i < draws.size(); ++i) {
      draws[i].num_forbidden = i % 2 == 0 ? 2 : 0;
      draws[i].kept_row = static_cast<int32_t>(draws.size() - 1 - i);
    }
    const Outcome got = Draws(logits, vocabulary, draws, forbidden);
    for (size_t i = 0; i < draws.size(); ++i) {
      SCOPED_TRACE(i);
      const SamplingParams params = ParamsOf(draws[i]);
      const auto own = std::span(forbidden).first(static_cast<size_t>(draws[i].num_forbidden));
      const auto want = SampleToken(logits, params, own, 0.5);
      ASSERT_TRUE(want.ok());
      const auto row = static_cast<size_t>(draws[i].kept_row);
      if (want->support.empty()) {  // no filter, or greedy
        EXPECT_EQ(got.kept[row * static_cast<size_t>(KeptWords(vocabulary))], kUntouched);
      } else {
        EXPECT_EQ(KeptAt(got, vocabulary, row), want->support);
      }
    }
  }
}

TEST(DrawTokens, DrawTheSameWhetherOrNotTheyTellWhatWasLeft) {
  const std::vector<float> logits = Normal(1000, 9, 2);
  std::vector<Draw> draws = Settings(1);
  const std::vector<Drawn> untold = DrawAll(logits, 1000, draws);
  for (Draw& draw : draws) draw.kept_row = 0;
  const std::vector<Drawn> told = DrawAll(logits, 1000, draws);
  for (size_t i = 0; i < draws.size(); ++i) {
    EXPECT_EQ(std::memcmp(&told[i], &untold[i], sizeof(Drawn)), 0) << i;
  }
}

// All ids have one logit, or one of two: every bin has too many ids for the list.
TEST(DrawTokens, FindTheSameWhereIdsCrowd) {
  for (const float apart : {0.0f, 1e-3f}) {
    SCOPED_TRACE(apart);
    std::vector<float> logits(3000, 2.0f);
    for (size_t i = 0; i < logits.size(); i += 2) logits[i] += apart;
    std::vector<Draw> draws;
    for (uint32_t i = 0; i < 4; ++i) {
      draws.push_back({.seed = i, .top_k = 1700});
      draws.push_back({.seed = i, .top_p = 0.3f});
      draws.push_back({.seed = i, .top_k = 1600, .top_p = 0.95f, .num_top = 5});
      draws.push_back({.seed = i, .min_p = 0.9f});
    }
    ExpectSameAsCpu(logits, 3000, draws);
  }
}

TEST(DrawTokens, KeepWhatTheCpuKeepsWhenTopKReachesFarDown) {
  // The thresholds lie more than 32 below the largest, in the last bin.
  std::vector<float> logits = Normal(4000, 17, 3);
  logits[1234] = 60;
  std::vector<Draw> draws;
  for (uint32_t i = 0; i < 4; ++i) {
    draws.push_back({.seed = i, .temperature = 20, .top_k = 50});
    draws.push_back({.seed = i, .temperature = 20, .top_p = 0.5f});
    draws.push_back({.seed = i, .temperature = 20, .top_k = 3000, .top_p = 0.9f, .num_top = 3});
  }
  ExpectSameAsCpu(logits, 4000, draws);
}

TEST(DrawTokens, ListTheMostLikelyIdsAsTheCpuDoes) {
  for (const int64_t vocabulary : {50, 5003, 20000}) {
    SCOPED_TRACE(vocabulary);
    std::vector<float> logits = Normal(static_cast<size_t>(vocabulary), 21, 2);
    logits[3] = logits[17] = logits[44];  // equals: the lower id first
    const std::vector<int32_t> forbidden = {1, 30};
    std::vector<Draw> draws = Settings(1);
    for (size_t i = 0; i < draws.size(); ++i) {
      draws[i].num_forbidden = i % 2 == 0 ? 2 : 0;
      draws[i].num_top = i % 3 == 0 ? 20 : 1;
    }
    const Outcome got = Draws(logits, vocabulary, draws, forbidden);
    for (size_t i = 0; i < draws.size(); ++i) {
      SCOPED_TRACE(i);
      SamplingParams params = ParamsOf(draws[i]);
      params.top_logprobs = draws[i].num_top;
      const auto own = std::span(forbidden).first(static_cast<size_t>(draws[i].num_forbidden));
      const auto want = SampleToken(logits, params, own, 0.5);
      ASSERT_TRUE(want.ok());
      ASSERT_EQ(got.drawn[i].num_top, static_cast<int32_t>(want->top.size()));
      for (size_t t = 0; t < want->top.size(); ++t) {
        const TopId& one = got.top[i * kMostTop + t];
        EXPECT_EQ(one.id, want->top[t].id) << t;
        EXPECT_NEAR(one.logprob, want->top[t].logprob, 4e-6);
      }
    }
  }
}

TEST(DrawTokens, ListTheMostLikelyIdsOfARowOfEquals) {
  const std::vector<float> logits(3000, -1.5f);
  const Outcome got = Draws(logits, 3000, {{.num_forbidden = 2, .num_top = 4}}, {0, 2});
  ASSERT_EQ(got.drawn[0].num_top, 4);
  EXPECT_EQ(got.top[0].id, 1);
  EXPECT_EQ(got.top[1].id, 3);
  EXPECT_EQ(got.top[2].id, 4);
  EXPECT_EQ(got.top[3].id, 5);
  EXPECT_NEAR(got.top[0].logprob, -std::log(2998.0), 4e-6);
}

TEST(DrawTokens, ScoreAGivenIdAsTheCpuDoes) {
  for (const int64_t vocabulary : {50, 5003, 20000}) {
    const std::vector<float> logits = Normal(static_cast<size_t>(vocabulary), 31, 2);
    for (const int32_t id : {0, 7, 49}) {
      SCOPED_TRACE(::testing::Message() << vocabulary << " ids, id " << id);
      std::vector<Draw> draws = Settings(1);
      std::erase_if(draws, [](const Draw& draw) { return draw.temperature == 0; });
      for (Draw& draw : draws) draw.scored_id = id;
      const Outcome got = Draws(logits, vocabulary, draws);
      for (size_t i = 0; i < draws.size(); ++i) {
        SCOPED_TRACE(i);
        const ScoreOptions options = {.temperature = draws[i].temperature,
                                      .top_k = draws[i].top_k,
                                      .top_p = draws[i].top_p,
                                      .min_p = draws[i].min_p};
        const auto want = ScoreToken(logits, options, id);
        ASSERT_TRUE(want.ok());
        ASSERT_EQ(got.drawn[i].state, DrawState::kDrawn);
        if (std::isinf(want->logprob)) {
          EXPECT_EQ(got.drawn[i].behaviour_logprob, want->logprob);
        } else {
          EXPECT_NEAR(got.drawn[i].behaviour_logprob, want->logprob, 4e-6);
        }
        EXPECT_NEAR(got.drawn[i].raw_logprob, want->raw_logprob, 4e-6);
        EXPECT_NEAR(got.drawn[i].entropy, want->entropy, 1e-4);
        EXPECT_NEAR(got.drawn[i].kept_mass, want->kept_mass, 2e-6);
        EXPECT_NEAR(got.scored[i].squared_probs, want->squared_probs, 2e-6);
        EXPECT_EQ(got.scored[i].margin, want->margin);
        EXPECT_EQ(got.scored[i].gap, want->gap);
        EXPECT_EQ(got.scored[i].rank, want->rank);
        EXPECT_NEAR(got.scored[i].mass_above, want->mass_above, 4e-6);
      }
    }
  }
}

// So a score has the bits of the record.
TEST(DrawTokens, ScoreADrawnIdWithTheBitsOfItsRecord) {
  const std::vector<float> logits = Normal(20000, 33, 2);
  std::vector<Draw> draws = Settings(1);
  std::erase_if(draws, [](const Draw& draw) { return draw.temperature == 0; });
  const std::vector<Drawn> drawn = DrawAll(logits, 20000, draws);
  for (size_t i = 0; i < draws.size(); ++i) draws[i].scored_id = drawn[i].id;
  const std::vector<Drawn> scored = DrawAll(logits, 20000, draws);
  for (size_t i = 0; i < draws.size(); ++i) {
    EXPECT_EQ(std::memcmp(&scored[i], &drawn[i], sizeof(Drawn)), 0) << i;
  }
}

// A row alone is shared by several thread blocks; among many rows it has one.
TEST(DrawTokens, GiveTheSameBitsHoweverManyBlocksShareARow) {
  constexpr int64_t kVocabulary = 9000;
  const std::vector<float> logits = Normal(kVocabulary, 41, 2);
  const std::vector<Draw> few = Settings(1);
  std::vector<Draw> many;
  while (many.size() < 200) many.insert(many.end(), few.begin(), few.end());
  const std::vector<Drawn> together = DrawAll(logits, kVocabulary, many);
  for (size_t i = 0; i < few.size(); ++i) {
    const std::vector<Drawn> alone = DrawAll(logits, kVocabulary, {few[i]});
    EXPECT_EQ(std::memcmp(&alone[0], &together[i], sizeof(Drawn)), 0) << i;
  }
}

TEST(DrawTokens, DrawForMoreThanTheWorkspaceHoldsAtOnce) {
  const std::vector<float> logits = Normal(64, 3);
  std::vector<Draw> draws;
  for (uint32_t i = 0; i < kDrawsTogether + 40; ++i) {
    draws.push_back({.seed = 5, .index = i, .top_p = i % 2 == 0 ? 1.0f : 0.8f});
  }
  ExpectSameAsCpu(logits, 64, draws);
}

TEST(DrawTokens, SaysWhichRowsAreBrokenAndWhichHaveNothingLeft) {
  std::vector<float> logits = Normal(5 * 64, 3);
  logits[0 * 64 + 40] = NAN;
  logits[1 * 64 + 63] = kInfinity;
  for (int i = 0; i < 64; ++i) logits[2 * 64 + i] = -kInfinity;
  for (int i = 1; i < 64; ++i) logits[3 * 64 + i] = -kInfinity;
  std::vector<Draw> draws;
  for (int32_t row = 0; row < 5; ++row) draws.push_back({.row = row});
  draws[3].num_forbidden = 1;
  const std::vector<Drawn> drawn = DrawAll(logits, 64, draws, {0});
  EXPECT_EQ(drawn[0].state, DrawState::kBroken);
  EXPECT_EQ(drawn[1].state, DrawState::kBroken);
  EXPECT_EQ(drawn[2].state, DrawState::kBroken);
  EXPECT_EQ(drawn[3].state, DrawState::kNothingLeft);
  EXPECT_EQ(drawn[4].state, DrawState::kDrawn);
}

TEST(DrawTokens, LeaveWhatStandsThereForAPaddedDraw) {
  const std::vector<float> logits = Normal(2 * 64, 3);
  const std::vector<Drawn> drawn = DrawAll(logits, 64, {{.row = 0}, {.row = -1}, {.row = 1}});
  EXPECT_NE(drawn[0].id, -7);
  EXPECT_EQ(drawn[1].id, -7);
  EXPECT_NE(drawn[2].id, -7);
}

}  // namespace
}  // namespace tandem::rollout::cuda
