#include "rollout_server/engine/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::testing::Optional;

const Tokenizer& SmolLm2() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      *Tokenizer::Load(std::string(TANDEM_SOURCE_DIR) + "/tests/testdata/smollm2-tokenizer");
  return *tokenizer;
}

std::vector<int32_t> Ids(const std::string& text) { return *SmolLm2().Encode(text); }

std::optional<size_t> Check(const std::vector<std::string>& stops,
                            const std::vector<int32_t>& ids) {
  StopMatcher matcher(&SmolLm2(), stops);
  const auto at = matcher.Check(ids);
  EXPECT_THAT(at, testing::IsOk());
  return at.ok() ? *at : std::nullopt;
}

// How many tokens of `text` the matcher needs; 0 when it never finds a stop.
size_t TokensUntilStop(const std::vector<std::string>& stops, const std::string& text) {
  const std::vector<int32_t> ids = Ids(text);
  for (size_t n = 1; n <= ids.size(); ++n) {
    if (Check(stops, {ids.begin(), ids.begin() + static_cast<int64_t>(n)})) return n;
  }
  return 0;
}

TEST(StopMatcher, FindsNothingWhereNoStopStringIs) {
  EXPECT_EQ(Check({"stop", "\n\n"}, Ids("The answer is 42.")), std::nullopt);
}

TEST(StopMatcher, GivesTheLengthOfTheTextBeforeTheStopString) {
  EXPECT_THAT(Check({"is"}, Ids("The answer is 42.")), Optional(11));
}

TEST(StopMatcher, TakesTheStopStringThatComesFirstInTheText) {
  EXPECT_THAT(Check({"42", "answer"}, Ids("The answer is 42.")), Optional(4));
}

TEST(StopMatcher, FindsAStopStringAcrossTokens) {
  ASSERT_GT(Ids("wer is 4").size(), 2u);
  EXPECT_THAT(Check({"wer is 4"}, Ids("The answer is 42.")), Optional(7));
}

TEST(StopMatcher, FindsAStopStringWithTheTokenThatCompletesIt) {
  // Digits are one token each: "1", "2", "3", "4".
  EXPECT_EQ(TokensUntilStop({"23"}, "1234"), 3u);
}

TEST(StopMatcher, FindsASpecialTokenWrittenAsText) {
  EXPECT_THAT(Check({"<|im_end|>"}, Ids("hello<|im_end|>")), Optional(5));
}

TEST(StopMatcher, WaitsForTheBytesOfACharacterSpreadOverTokens) {
  const std::string ghost = "\xF0\x9F\x91\xBB";  // U+1F47B
  const std::vector<int32_t> ids = Ids("a" + ghost);
  ASSERT_GT(ids.size(), 2u);  // the character is more than one token
  EXPECT_EQ(TokensUntilStop({ghost}, "a" + ghost), ids.size());
}

TEST(StopMatcher, TokenByTokenFindsWhatTheWholeTextHas) {
  // Words, digits, emoji in pieces, lone bytes and special tokens in random order.
  std::vector<int32_t> pieces = Ids(" the cat and 12 \xF0\x9F\x91\xBB\xE2\x82\xAC\n\n<|im_end|>ab");
  for (int32_t id = 100; id < 300; id += 7) pieces.push_back(id);
  const std::vector<std::string> stops = {"t a",  "1\xF0\x9F",     "\xF0\x9F\x91\xBB",
                                          "\n\n", "d\xE2\x82\xAC", "the the"};
  std::mt19937 random(5);
  int found = 0;
  for (int run = 0; run < 300; ++run) {
    StopMatcher matcher(&SmolLm2(), stops);
    std::vector<int32_t> ids;
    for (int t = 0; t < 40; ++t) {
      ids.push_back(pieces[random() % pieces.size()]);
      const auto at = matcher.Check(ids);
      ASSERT_THAT(at, testing::IsOk());
      const std::optional<size_t> want = Check(stops, ids);
      ASSERT_EQ(*at, want) << "run " << run << " token " << t;
      if (want) {
        ++found;
        break;
      }
    }
  }
  EXPECT_GT(found, 50);
  EXPECT_LT(found, 300);
}

TEST(StopMatcher, BytesOfAnUnfinishedCharacterAreNoReplacementCharacter) {
  const std::string ghost = "\xF0\x9F\x91\xBB";
  std::vector<int32_t> ids = Ids("a" + ghost);
  ids.pop_back();
  EXPECT_EQ(Check({"\xEF\xBF\xBD"}, ids), std::nullopt);
}

TEST(StopMatcher, DropsTheRunOfReplacementCharactersAtTheEndOnly) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(WithoutUnfinishedCharacter("a" + bad + "b" + bad + bad), "a" + bad + "b");
  EXPECT_EQ(WithoutUnfinishedCharacter("plain"), "plain");
  EXPECT_EQ(WithoutUnfinishedCharacter(bad), "");
}

}  // namespace
}  // namespace tandem::rollout
