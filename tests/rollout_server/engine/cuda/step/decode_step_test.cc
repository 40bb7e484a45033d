#include "rollout_server/engine/cuda/step/decode_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "rollout_server/engine/cuda/step/graph_cache.h"

namespace tandem::rollout::cuda {
namespace {

using ::testing::ElementsAre;

StopIds Stops(std::vector<int32_t> ids, int64_t vocab_size = 1000) {
  return StopIds({.stop_token_ids = std::move(ids)}, {}, vocab_size);
}

// Decodes of three sequences, each with a draw of its own.
struct Example {
  const std::vector<BlockId> first = {7, 2}, second = {5}, third = {9, 4, 1};
  SamplingParams plain;
  const StopIds two = Stops({8, 9}), one = Stops({3});
  std::vector<TokenInput> inputs = {
      {.token_id = 10, .position = 17, .blocks = &first},
      {.token_id = 20, .position = 0, .blocks = &second},
      {.token_id = 30, .position = 15, .blocks = &third},
  };
  std::vector<int64_t> logits_rows = {0, 1, 2};
  std::vector<TokenDraw> draws = {
      {.logits_row = 0, .params = &plain, .index = 0, .position = 4},
      {.logits_row = 1, .params = &plain, .forbidden = &two, .index = 1, .position = 5},
      {.logits_row = 2, .params = &plain, .forbidden = &one, .index = 2, .position = 6},
  };

  std::optional<GraphKey> Graph() const { return GraphOf(inputs, logits_rows, draws, 12); }
};

TEST(DecodeStep, PadsRowsByAtMostAFifthFrom32On) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1},     {2, 2},     {3, 4},   {5, 8},
                                               {9, 16},    {17, 24},   {64, 64}, {65, 80},
                                               {256, 256}, {257, 320}, {33, 40}, {512, 512}};
  for (const auto& [rows, want] : sizes) EXPECT_EQ(PaddedRows(rows), want) << rows;
  for (int64_t rows = 32; rows <= kMaxGraphRows; ++rows) {
    ASSERT_GE(PaddedRows(rows), rows);
    ASSERT_LE(PaddedRows(rows) - rows, PaddedRows(rows) / 5) << rows;
    ASSERT_LE(PaddedRows(rows), kMaxGraphRows);
  }
}

TEST(DecodeStep, PadsContextsToAPowerOfTwoOfChunks) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1},   {256, 1}, {257, 2},
                                               {512, 2}, {513, 4}, {256 * 128, 128}};
  for (const auto& [context, want] : sizes) EXPECT_EQ(PaddedChunks(context), want) << context;
}

TEST(DecodeStep, HasAGraphByPaddedRowsChunksAndWeights) {
  Example example;
  EXPECT_EQ(example.Graph(), (GraphKey{4, 1, 12}));
  example.inputs[1].position = 600;
  EXPECT_EQ(example.Graph(), (GraphKey{4, 4, 12}));
}

TEST(DecodeStep, HasNoGraphWhenARowIsNotDrawnFromExactlyOnce) {
  Example chunk;  // two prompt tokens, one of which is drawn from
  chunk.logits_rows = {0, 2};
  chunk.draws.erase(chunk.draws.begin() + 1);
  EXPECT_EQ(chunk.Graph(), std::nullopt);
  Example group;  // two members' first tokens come from one row
  group.inputs.pop_back();
  group.logits_rows = {0, 1};
  group.draws[2].logits_row = 1;
  EXPECT_EQ(group.Graph(), std::nullopt);
  Example twice = group;  // the same, beside a row without a draw
  twice.inputs.push_back(twice.inputs[0]);
  twice.logits_rows = {0, 1, 2};
  EXPECT_EQ(twice.Graph(), std::nullopt);
  EXPECT_EQ(GraphOf({}, {}, {}, 1), std::nullopt);
}

TEST(DecodeStep, HasAGraphWhateverIsRecordedOfADraw) {
  Example example;
  SamplingParams recorded = example.plain;
  recorded.top_logprobs = 5;
  example.draws[1].params = &recorded;
  EXPECT_NE(example.Graph(), std::nullopt);
  ForbiddenWords forbidden;
  EXPECT_EQ(AsDraw(example.draws[1], 1, 1, forbidden).num_top, 5);
  recorded.top_logprobs = 0;
  recorded.return_support = true;
  recorded.top_p = 0.9f;
  EXPECT_NE(example.Graph(), std::nullopt);
}

TEST(DecodeStep, RecordsASupportWhereItIsAskedForAndAFilterIsOn) {
  EXPECT_FALSE(RecordsSupport({.return_support = true}));
  EXPECT_FALSE(RecordsSupport({.top_k = 5}));
  EXPECT_FALSE(RecordsSupport({.temperature = 0, .top_k = 5, .return_support = true}));
  EXPECT_TRUE(RecordsSupport({.top_k = 5, .return_support = true}));
  EXPECT_TRUE(RecordsSupport({.top_p = 0.9f, .return_support = true}));
  EXPECT_TRUE(RecordsSupport({.min_p = 0.1f, .return_support = true}));
  const SamplingParams params = {.top_k = 5, .return_support = true}, plain;
  TokenDraw draw = {.params = &params};
  ForbiddenWords forbidden;
  EXPECT_EQ(AsDraw(draw, 2, 7, forbidden).kept_row, 7);
  draw.params = &plain;
  EXPECT_EQ(AsDraw(draw, 2, 7, forbidden).kept_row, -1);
}

TEST(DecodeStep, ReadsIdsOutOfBits) {
  EXPECT_THAT(KeptIds(std::vector<uint32_t>{0x80000001u, 0, 0x6u}), ElementsAre(0, 31, 65, 66));
  EXPECT_THAT(KeptIds({}), ElementsAre());
}

TEST(DecodeStep, HasNoGraphOverItsSizes) {
  Example longest;
  longest.inputs[0].position = kMaxGraphChunks * tandem::cuda::kAttentionChunk - 1;
  EXPECT_NE(longest.Graph(), std::nullopt);
  longest.inputs[0].position += 1;
  EXPECT_EQ(longest.Graph(), std::nullopt);
  std::vector<int32_t> ids(29);
  std::iota(ids.begin(), ids.end(), 1);
  Example forbidding;  // room for 4 rows x 8 words, of which 3 are taken
  const StopIds most = Stops(ids);
  forbidding.draws[0].forbidden = &most;
  EXPECT_NE(forbidding.Graph(), std::nullopt);
  ids.push_back(30);
  const StopIds more = Stops(ids);
  forbidding.draws[0].forbidden = &more;
  EXPECT_EQ(forbidding.Graph(), std::nullopt);
  forbidding.draws[1].forbidden = &more;  // another draw of that group
  EXPECT_NE(forbidding.Graph(), std::nullopt);
  Example wide;
  for (int64_t i = 3; i <= kMaxGraphRows; ++i) {
    wide.inputs.push_back(wide.inputs[0]);
    wide.logits_rows.push_back(i);
    wide.draws.push_back(wide.draws[0]);
    wide.draws.back().logits_row = i;
  }
  EXPECT_EQ(wide.Graph(), std::nullopt);
}

template <typename T>
std::vector<T> Read(const std::vector<std::byte>& bytes, size_t at, size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.data() + at, count * sizeof(T));
  return values;
}

TEST(DecodeStep, FillsWhatAGraphReadsAndPadsWithRowsThatDoNothing) {
  Example example;
  example.plain.temperature = 0.5f;
  const GraphKey key = *example.Graph();
  const DecodeLayout layout = LayoutOf(key);
  EXPECT_EQ(layout.max_blocks, 16);
  std::vector<std::byte> bytes(layout.bytes, std::byte{0x55});  // of the step before
  Fill(key, example.inputs, example.draws, bytes);
  EXPECT_THAT(Read<int32_t>(bytes, layout.ids, 4), ElementsAre(10, 20, 30, 0));
  EXPECT_THAT(Read<int32_t>(bytes, layout.positions, 4), ElementsAre(17, 0, 15, 0));
  EXPECT_THAT(Read<int32_t>(bytes, layout.sequences, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Read<int32_t>(bytes, layout.contexts, 4), ElementsAre(18, 1, 16, 0));
  EXPECT_THAT(Read<int64_t>(bytes, layout.slots, 4),
              ElementsAre(2 * 16 + 1, 5 * 16, 9 * 16 + 15, -1));
  EXPECT_THAT(Read<int64_t>(bytes, layout.logits_rows, 4), ElementsAre(0, 1, 2, 3));
  const auto tables = Read<int32_t>(bytes, layout.block_tables, 4 * 16);
  EXPECT_EQ(tables[0], 7);
  EXPECT_EQ(tables[1], 2);
  EXPECT_EQ(tables[2], 0);
  EXPECT_EQ(tables[16], 5);
  EXPECT_EQ(tables[32], 9);
  EXPECT_EQ(tables[33], 0);  // position 15 is in its first block
  EXPECT_EQ(tables[48], 0);
  const auto draws = Read<Draw>(bytes, layout.draws, 4);
  EXPECT_EQ(draws[1].row, 1);
  EXPECT_EQ(draws[1].index, 1u);
  EXPECT_EQ(draws[1].position, 5u);
  EXPECT_EQ(draws[1].temperature, 0.5f);
  EXPECT_EQ(draws[1].first_forbidden, 0);
  EXPECT_EQ(draws[1].num_forbidden, 2);
  EXPECT_EQ(draws[2].first_forbidden, 2);
  EXPECT_EQ(draws[3].row, -1);
  EXPECT_THAT(Read<int32_t>(bytes, layout.forbidden, 3), ElementsAre(8, 9, 3));
}

// Logits of all rows of a graph exist at once, so that its step reads the head's weights once.
TEST(DecodeStep, HasOneSliceOfLogitsForALargestGraph) {
  Example example;
  for (int64_t i = 3; i < kMaxGraphRows; ++i) {
    example.inputs.push_back(example.inputs[1]);
    example.draws.push_back(example.draws[0]);
    example.draws.back().logits_row = i;
    example.logits_rows.push_back(i);
  }
  const auto key = example.Graph();
  ASSERT_EQ(key, (GraphKey{kMaxGraphRows, 1, 12}));
  std::vector<std::byte> bytes(LayoutOf(*key).bytes);
  Fill(*key, example.inputs, example.draws, bytes);
  const auto draws = Read<Draw>(bytes, LayoutOf(*key).draws, kMaxGraphRows);
  for (int32_t i = 0; i < kMaxGraphRows; ++i) ASSERT_EQ(draws[static_cast<size_t>(i)].row, i);
}

TEST(DecodeStep, HasForbiddenIdsOfAGroupOnceForTheKernel) {
  Example example;
  const StopIds three = Stops({9, 2, 7, 9});
  example.draws[0].forbidden = example.draws[2].forbidden = &three;
  ForbiddenWords forbidden;
  std::vector<Draw> draws;
  for (const TokenDraw& draw : example.draws) draws.push_back(AsDraw(draw, 0, 0, forbidden));
  EXPECT_THAT(forbidden.words(), ElementsAre(2, 7, 9, 8, 9));
  EXPECT_EQ(draws[0].first_forbidden, 0);
  EXPECT_EQ(draws[1].first_forbidden, 3);
  EXPECT_EQ(draws[2].first_forbidden, 0);
  EXPECT_EQ(draws[2].num_forbidden, 3);
  const StopIds none;
  example.draws[1].forbidden = &none;
  EXPECT_EQ(AsDraw(example.draws[1], 0, 0, forbidden).num_forbidden, 0);
  EXPECT_EQ(forbidden.words().size(), 5u);
}

TEST(DecodeStep, HasForbiddenIdsAsBitsWhereThatTakesFewerWords) {
  const StopIds three = Stops({1, 40, 63}, /*vocab_size=*/64);
  const SamplingParams plain;
  const TokenDraw draw = {.params = &plain, .forbidden = &three};
  ForbiddenWords forbidden;
  EXPECT_EQ(AsDraw(draw, 0, 0, forbidden).num_forbidden, kForbiddenBits);
  EXPECT_THAT(forbidden.words(), ElementsAre(2, static_cast<int32_t>(0x80000100u)));
}

TEST(GraphCache, FindsAGraphByItsWholeKey) {
  GraphCache<int> cache(8);
  EXPECT_EQ(cache.Any(), nullptr);
  EXPECT_EQ(cache.Find({4, 1, 12}), nullptr);
  cache.Add({4, 1, 12}, std::make_unique<int>(7));
  ASSERT_NE(cache.Find({4, 1, 12}), nullptr);
  EXPECT_EQ(*cache.Find({4, 1, 12}), 7);
  EXPECT_EQ(cache.Find({8, 1, 12}), nullptr);
  EXPECT_EQ(cache.Find({4, 2, 12}), nullptr);
  EXPECT_EQ(cache.Find({4, 1, 13}), nullptr);
  EXPECT_EQ(*cache.Any(), 7);
}

TEST(GraphCache, KeepsTheGraphsOfTwoPlacesOfWeightsAndDropsAThirds) {
  GraphCache<int> cache(8);
  for (const uint64_t place : {1, 2}) {
    EXPECT_EQ(cache.Find({4, 1, place}), nullptr);
    cache.Add({4, 1, place}, std::make_unique<int>(static_cast<int>(place)));
  }
  EXPECT_NE(cache.Find({4, 1, 1}), nullptr);  // installs go to and fro between the two
  EXPECT_NE(cache.Find({4, 1, 2}), nullptr);
  EXPECT_NE(cache.Find({4, 1, 1}), nullptr);
  EXPECT_EQ(cache.Find({4, 1, 3}), nullptr);  // a push was given up, and its memory with it
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_NE(cache.Find({4, 1, 1}), nullptr);
  EXPECT_EQ(cache.Find({4, 1, 2}), nullptr);
}

TEST(GraphCache, DropsTheGraphThatWasFoundLongestAgoWhenThereAreTooMany) {
  GraphCache<int> cache(2);
  cache.Add({1, 1, 5}, std::make_unique<int>(1));
  cache.Add({2, 1, 5}, std::make_unique<int>(2));
  EXPECT_NE(cache.Find({1, 1, 5}), nullptr);
  cache.Add({4, 1, 5}, std::make_unique<int>(4));
  EXPECT_NE(cache.Find({1, 1, 5}), nullptr);
  EXPECT_EQ(cache.Find({2, 1, 5}), nullptr);
  EXPECT_NE(cache.Find({4, 1, 5}), nullptr);
}

}  // namespace
}  // namespace tandem::rollout::cuda
