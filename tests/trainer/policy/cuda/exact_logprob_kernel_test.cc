// The trainer's log-probs beside the records of the draws themselves, from the same logits: the
// same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/cuda/step/decode_step.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "tests/support/device/device_memory.h"
#include "tests/trainer/policy/cuda/element_array.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

using rollout::cuda::Draw;
using rollout::cuda::Drawn;
using rollout::cuda::DrawState;
using rollout::cuda::KeptWords;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of logits, and what was drawn from them: draw r from row r.
struct Rows {
  int64_t vocabulary = 0;
  float temperature = 1;
  std::vector<float> logits;  // [R, V]
  std::vector<int64_t> tokens;
  std::vector<std::vector<int32_t>> supports;  // [R]

  std::span<const float> row(size_t r) const {
    const auto width = static_cast<size_t>(vocabulary);
    return std::span(logits).subspan(r * width, width);
  }
};

struct Logprobs {
  std::vector<float> logprobs, entropies, lse;
};

using RunLogprobs = void (*)(const TokenLogprobs&, Stream);

Logprobs LogprobsOf(const Rows& rows, RunLogprobs run = RunExactLogprobs, size_t lead = 0) {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& ids : rows.supports) {
    all.insert(all.end(), ids.begin(), ids.end());
    offsets.push_back(static_cast<int64_t>(all.size()));
  }
  const ElementArray logits(Element::kFp32, rows.logits, lead);
  const DeviceArray<int64_t> tokens(rows.tokens), d_offsets(offsets);
  const DeviceArray<int32_t> ids(all);
  const DeviceArray<float> logprobs(rows.tokens.size()), entropies(rows.tokens.size()),
      lse(rows.tokens.size());
  run({.of = {.logits = static_cast<const float*>(logits.data()),
              .tokens = tokens.data(),
              .rows = static_cast<int64_t>(rows.tokens.size()),
              .vocabulary = rows.vocabulary,
              .inverse_temperature = rows.temperature == 0 ? 1.0f : 1.0f / rows.temperature,
              .support_offsets = rows.supports.empty() ? nullptr : d_offsets.data(),
              .support_ids = ids.data()},
       .logprobs = logprobs.data(),
       .entropies = entropies.data(),
       .lse = lse.data()},
      nullptr);
  return {logprobs.Read(), entropies.Read(), lse.Read()};
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

void ExpectSameBits(const Logprobs& got, const Logprobs& want) {
  EXPECT_EQ(Bits(got.logprobs), Bits(want.logprobs));
  EXPECT_EQ(Bits(got.entropies), Bits(want.entropies));
  EXPECT_EQ(Bits(got.lse), Bits(want.lse));
}

// Draw r from row r of `rows`; its token and the ids that its filters left go to `rows`.
std::vector<Drawn> DrawFrom(Rows& rows, std::vector<Draw> draws,
                            const std::vector<int32_t>& forbidden) {
  const auto words = static_cast<size_t>(KeptWords(rows.vocabulary));
  for (size_t r = 0; r < draws.size(); ++r) {
    draws[r].row = draws[r].kept_row = static_cast<int32_t>(r);
    draws[r].temperature = rows.temperature;
  }
  const DeviceArray<float> logits(rows.logits);
  const DeviceArray<Draw> d_draws(draws);
  const DeviceArray<int32_t> d_forbidden(forbidden);
  const DeviceArray<Drawn> drawn(draws.size());
  const DeviceArray<uint32_t> kept(draws.size() * words, 0);  // no filter writes none
  const auto num = static_cast<int64_t>(draws.size());
  const DeviceArray<uint8_t> workspace(
      static_cast<size_t>(rollout::cuda::DrawWorkspaceBytes(rows.vocabulary, num)));
  rollout::cuda::DrawTokens({.logits = logits.data(),
                             .vocabulary = rows.vocabulary,
                             .draws = d_draws.data(),
                             .num_draws = num,
                             .forbidden = d_forbidden.data(),
                             .drawn = drawn.data(),
                             .kept = kept.data(),
                             .workspace = workspace.data()},
                            nullptr);
  const std::vector<Drawn> all = drawn.Read();
  const std::vector<uint32_t> bits = kept.Read();
  for (size_t r = 0; r < draws.size(); ++r) {
    EXPECT_EQ(all[r].state, DrawState::kDrawn);
    rows.tokens.push_back(all[r].id);
    rows.supports.push_back(rollout::cuda::KeptIds(std::span(bits).subspan(r * words, words)));
  }
  return all;
}

void ExpectRecordsOf(const std::vector<Drawn>& drawn, const Rows& rows) {
  const Logprobs got = LogprobsOf(rows);
  for (size_t r = 0; r < drawn.size(); ++r) {
    SCOPED_TRACE(::testing::Message()
                 << rows.vocabulary << " ids, temperature " << rows.temperature << ", draw " << r);
    EXPECT_EQ(Bits({got.logprobs[r], got.entropies[r]}),
              Bits({drawn[r].behaviour_logprob, drawn[r].entropy}))
        << got.logprobs[r] << ", recorded " << drawn[r].behaviour_logprob << "; "
        << got.entropies[r] << ", recorded " << drawn[r].entropy;
  }
}

// No filter, each of them, all at once, and those that leave everything.
std::vector<Draw> Filters() {
  std::vector<Draw> draws = {{},
                             {.top_k = 3},
                             {.top_p = 0.9f},
                             {.min_p = 0.02f},
                             {.top_k = 40, .top_p = 0.95f, .min_p = 0.01f},
                             {},
                             {.top_k = 1000000},
                             {.top_k = 1}};
  for (size_t r = 0; r < draws.size(); ++r) {
    draws[r].seed = 77 * r;
    draws[r].position = static_cast<uint32_t>(r);
  }
  return draws;
}

// A warp's part of a segment; less and more than one segment; more segments than warps.
constexpr int64_t kVocabularies[] = {5, 1000, 2049, 50257};

Rows RowsOf(int64_t vocabulary, float temperature, size_t count, float spread = 3) {
  return {.vocabulary = vocabulary,
          .temperature = temperature,
          .logits = Normal(count * static_cast<size_t>(vocabulary), 21, spread)};
}

TEST(ExactLogprobs, HaveTheBitsOfTheDrawsRecords) {
  for (const int64_t vocabulary : kVocabularies) {
    for (const float temperature : {1.0f, 0.7f, 1.3f}) {
      const std::vector<Draw> draws = Filters();
      Rows rows = RowsOf(vocabulary, temperature, draws.size());
      const std::vector<Drawn> drawn = DrawFrom(rows, draws, {});
      ExpectRecordsOf(drawn, rows);
    }
  }
}

// Filters found by the CPU's sampler in the same logits: the lists a server sends are these ids.
TEST(ExactLogprobs, HaveTheBitsOfTheDrawsRecordsOverSupportsOfTheCpusFilters) {
  for (const int64_t vocabulary : {5, 1000, 2049}) {
    const std::vector<Draw> draws = Filters();
    Rows rows = RowsOf(vocabulary, 0.7f, draws.size());
    const std::vector<Drawn> drawn = DrawFrom(rows, draws, {});
    for (size_t r = 0; r < draws.size(); ++r) {
      const rollout::SamplingParams params = {.temperature = 0.7f,
                                              .top_k = draws[r].top_k,
                                              .top_p = draws[r].top_p,
                                              .min_p = draws[r].min_p,
                                              .return_support = true};
      const auto of_cpu = rollout::SampleToken(rows.row(r), params, {}, 0.5);
      ASSERT_TRUE(of_cpu.ok());
      EXPECT_EQ(rows.supports[r], of_cpu->support) << r;
      rows.supports[r] = of_cpu->support;
    }
    ExpectRecordsOf(drawn, rows);
  }
}

TEST(ExactLogprobs, HaveTheBitsOfGreedyDraws) {
  Rows rows = RowsOf(1000, 0, 2);
  ExpectRecordsOf(DrawFrom(rows, {{}, {.top_k = 3}}, {}), rows);
}

// The support says what could not be drawn. Without one nothing does.
TEST(ExactLogprobs, HaveTheBitsOfDrawsWithForbiddenIdsWhereThereIsASupport) {
  for (const int64_t vocabulary : {5, 1000, 2049}) {
    std::vector<Draw> draws = Filters();
    for (Draw& draw : draws) draw.num_forbidden = 2;
    Rows rows = RowsOf(vocabulary, 0.7f, draws.size());
    std::vector<int32_t> forbidden = {1, 4};
    for (size_t r = 0; r < draws.size(); ++r) {
      rows.logits[r * static_cast<size_t>(vocabulary) + 4] = 15;  // by far the largest
    }
    const std::vector<Drawn> drawn = DrawFrom(rows, draws, forbidden);
    const Logprobs got = LogprobsOf(rows);
    for (size_t r = 0; r < drawn.size(); ++r) {
      SCOPED_TRACE(r);
      if (rows.supports[r].empty()) {
        EXPECT_LT(got.logprobs[r], drawn[r].behaviour_logprob - 1);
      } else {
        EXPECT_EQ(Bits({got.logprobs[r], got.entropies[r]}),
                  Bits({drawn[r].behaviour_logprob, drawn[r].entropy}));
      }
    }
  }
}

TEST(ExactLogprobs, HaveTheBitsOfTheDrawsRecordsInRowsWithMinusInfinityAndTies) {
  const std::vector<Draw> draws = Filters();
  Rows rows = RowsOf(2049, 0.7f, draws.size(), 1);
  for (size_t i = 0; i < rows.logits.size(); ++i) {
    if (i % 3 == 1) rows.logits[i] = -kInfinity;
    if (i % 500 == 2) rows.logits[i] = 4;
    if (i % 500 == 3) rows.logits[i] = -200;
  }
  ExpectRecordsOf(DrawFrom(rows, draws, {}), rows);
}

TEST(ExactLogprobs, GiveLogOfHalfToOneOfTwo) {
  const Rows rows{.vocabulary = 4,
                  .temperature = 0.5f,
                  .logits = {4, 4, -kInfinity, -kInfinity, 4, 6, 4, 1},
                  .tokens = {1, 2},
                  .supports = {{}, {0, 2}}};
  const Logprobs got = LogprobsOf(rows);
  for (const size_t r : {0, 1}) {
    EXPECT_FLOAT_EQ(got.logprobs[r], -std::log(2.0f));
    EXPECT_FLOAT_EQ(got.entropies[r], std::log(2.0f));
    EXPECT_FLOAT_EQ(got.lse[r], 8 + std::log(2.0f));
  }
}

TEST(ExactLogprobs, AgreeWithTokenLogprobs) {
  for (const int64_t vocabulary : kVocabularies) {
    const std::vector<Draw> draws = Filters();
    Rows rows = RowsOf(vocabulary, 0.7f, draws.size());
    DrawFrom(rows, draws, {});
    const Logprobs got = LogprobsOf(rows), want = LogprobsOf(rows, RunTokenLogprobs);
    ExpectClose(got.logprobs, want.logprobs, 1e-6, 1);
    ExpectClose(got.entropies, want.entropies, 2e-6, 1);
    ExpectClose(got.lse, want.lse, 1e-6, 1);
  }
}

TEST(ExactLogprobs, HaveTheSameBitsAloneAndInCompanyAndAtAnyAddress) {
  const std::vector<Draw> draws = Filters();
  Rows rows = RowsOf(2049, 0.7f, draws.size());
  DrawFrom(rows, draws, {});
  const Logprobs all = LogprobsOf(rows);
  ExpectSameBits(LogprobsOf(rows, RunExactLogprobs, /*lead=*/3), all);
  for (const size_t r : {0, 4}) {
    const Rows alone{.vocabulary = rows.vocabulary,
                     .temperature = rows.temperature,
                     .logits = {rows.row(r).begin(), rows.row(r).end()},
                     .tokens = {rows.tokens[r]},
                     .supports = {rows.supports[r]}};
    ExpectSameBits(LogprobsOf(alone), {{all.logprobs[r]}, {all.entropies[r]}, {all.lse[r]}});
  }
}

TEST(ExactLogprobs, AreNanWhereADrawIsRefused) {
  Rows rows = RowsOf(2049, 1, 6);
  float* const logits = rows.logits.data();
  logits[1 * 2049 + 2000] = std::numeric_limits<float>::quiet_NaN();
  logits[2 * 2049 + 7] = kInfinity;
  std::fill_n(logits + 3 * 2049, 2049, -kInfinity);
  logits[4 * 2049 + 100] = logits[4 * 2049 + 200] = -kInfinity;
  rows.tokens = {3, 3, 3, 3, 100, 3};
  rows.supports = {{}, {3, 9}, {}, {}, {100, 200}, {3, 2048}};
  const Logprobs got = LogprobsOf(rows);
  for (const std::vector<float>* const values : {&got.logprobs, &got.entropies, &got.lse}) {
    for (const size_t r : {1, 2, 3, 4}) EXPECT_TRUE(std::isnan((*values)[r])) << r;
    for (const size_t r : {0, 5}) EXPECT_TRUE(std::isfinite((*values)[r])) << r;
  }
}

}  // namespace
}  // namespace tandem::trainer::cuda
