#include "rollout_server/engine/sampling/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "rollout_server/engine/sampling/completion.h"
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

absl::StatusOr<std::string> DecodeSmolLm2(std::span<const int32_t> ids) {
  return CompletionText(SmolLm2(), ids);
}

std::optional<size_t> Check(const std::vector<std::string>& stops, const std::vector<int32_t>& ids,
                            const DecodeIds& decode = DecodeSmolLm2) {
  StopMatcher matcher(decode, stops);
  const auto at = matcher.Check(ids);
  EXPECT_THAT(at, tandem::testing::IsOk());
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
    StopMatcher matcher(DecodeSmolLm2, stops);
    std::vector<int32_t> ids;
    for (int t = 0; t < 40; ++t) {
      ids.push_back(pieces[random() % pieces.size()]);
      const auto at = matcher.Check(ids);
      ASSERT_THAT(at, tandem::testing::IsOk());
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

const std::string kReplacement = "\xEF\xBF\xBD";

// How many bytes of `text` the character at its beginning has; 0: none that is complete.
size_t CharacterBytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
  if (size == 0 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return size;
}

// What a byte-level decoder shows: each byte of no character as a replacement character.
std::string Shown(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t size = CharacterBytes(bytes);
    text += size > 0 ? std::string(bytes.substr(0, size)) : kReplacement;
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

// Ids are pieces of bytes.
DecodeIds ByteLevel(std::vector<std::string> pieces) {
  return [pieces = std::move(pieces)](std::span<const int32_t> ids) {
    std::string bytes;
    for (const int32_t id : ids) bytes += pieces[static_cast<size_t>(id)];
    return Shown(bytes);
  };
}

// As the ByteFallback decoder of SentencePiece models: ids below 256 are bytes, of which a run is
// shown as text when all of it is, else as replacement characters only; 256 is the word " w".
std::string ByteFallback(std::span<const int32_t> ids) {
  std::string text, run;
  const auto end_run = [&] {
    const bool is_text = Shown(run).find(kReplacement) == std::string::npos;
    for (const char byte : run) text += is_text ? std::string(1, byte) : kReplacement;
    run.clear();
  };
  for (const int32_t id : ids) {
    if (id < 256) {
      run += static_cast<char>(id);
      continue;
    }
    end_run();
    text += " w";
  }
  end_run();
  return text;
}

// Counts the tokens that a matcher decodes while `ids` come one by one; it must not stop.
size_t DecodedUntilTheEnd(const std::vector<std::string>& stops, const std::vector<int32_t>& ids,
                          const DecodeIds& decode) {
  size_t num_decoded = 0;
  StopMatcher matcher(
      [&](std::span<const int32_t> some) {
        num_decoded += some.size();
        return decode(some);
      },
      stops);
  for (size_t n = 1; n <= ids.size(); ++n) {
    const auto at = matcher.Check(std::span(ids).first(n));
    EXPECT_THAT(at, tandem::testing::IsOk());
    EXPECT_EQ(*at, std::nullopt) << n;
  }
  return num_decoded;
}

TEST(StopMatcher, DecodesALinearNumberOfTokensOfPlainText) {
  std::vector<int32_t> ids;
  while (ids.size() < 2000) ids.push_back(Ids(" the cat")[ids.size() % 2]);
  EXPECT_LE(DecodedUntilTheEnd({"dog"}, ids, DecodeSmolLm2), 4 * ids.size());
}

// The model can fall into bytes that never become a character, and stay there.
TEST(StopMatcher, DecodesALinearNumberOfTokensOfBytesThatAreNoCharacter) {
  int32_t lone = 0;
  while (*DecodeSmolLm2(std::vector<int32_t>{lone}) != kReplacement) ++lone;
  const std::vector<int32_t> ids(2000, lone);
  EXPECT_LE(DecodedUntilTheEnd({"dog"}, ids, DecodeSmolLm2), 40 * ids.size());
}

// One byte of no character turns the whole run into replacement characters, though the last bytes
// alone are the stop string.
TEST(StopMatcher,
     DecodesALinearNumberOfTokensWhenTheWholeTextHasNoStopStringThatTheLastTokensHave) {
  std::vector<int32_t> ids(2000, 'a');
  ids[0] = 0x80;
  EXPECT_LE(DecodedUntilTheEnd({"a"}, ids, ByteFallback), 60 * ids.size());
}

// A thousand bytes that are no text, the last of which alone are the stop string, and then a word
// and the stop string as text.
class BrokenPromiseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ids[0] = 0x80;
    for (size_t n = 1; n <= ids.size(); ++n) {
      ASSERT_EQ(*matcher.Check(std::span(ids).first(n)), std::nullopt);
    }
    ids.insert(ids.end(), {256, 'a'});
  }

  std::vector<int32_t> ids = std::vector<int32_t>(1000, 'a');
  StopMatcher matcher{ByteFallback, {"a", "aaw"}};
};

TEST_F(BrokenPromiseTest, ARunThatIsNoTextHidesNoStopStringBehindIt) {
  std::optional<size_t> at;
  while (!at) {
    ASSERT_LE(ids.size(), 1300u);
    at = *matcher.Check(ids);
    ids.push_back(256);
  }
  EXPECT_EQ(*at, 1000 * kReplacement.size() + 2);
}

// Check looks again a quarter later.
TEST_F(BrokenPromiseTest, TheStopStringIsFoundAtTheEndBeforeThat) {
  ASSERT_EQ(*matcher.Check(ids), std::nullopt) << "too early for another look";
  EXPECT_THAT(matcher.FirstIn(ByteFallback(ids)), Optional(1000 * kReplacement.size() + 2));
  EXPECT_EQ(matcher.FirstIn(kReplacement + " w"), std::nullopt);
}

TEST(StopMatcher, FindsAStopStringBehindTokensThatAllEndWithinACharacter) {
  // Two thirds of a euro sign and the first third of the next one.
  const auto decode = ByteLevel({"\xE2", "\x82\xAC\xE2", "\x82\xAC", "x"});
  for (const size_t length : {1, 5, 12, 13, 40}) {
    std::vector<int32_t> ids(length + 1, 1);
    ids[0] = 0;
    StopMatcher matcher(decode, {"\xE2\x82\xACx"});
    for (size_t n = 1; n <= ids.size(); ++n) {
      ASSERT_EQ(*matcher.Check(std::span(ids).first(n)), std::nullopt);
    }
    for (const int32_t id : {2, 3}) ids.push_back(id);
    ASSERT_EQ(*matcher.Check(std::span(ids).first(ids.size() - 1)), std::nullopt);
    EXPECT_THAT(*matcher.Check(ids), Optional(3 * length)) << length;
  }
}

TEST(StopMatcher, TokenByTokenFindsWhatTheWholeTextHasUnderByteFallback) {
  const std::vector<int32_t> pieces = {256, 'a', 'b', 0xE2, 0x82, 0xAC, 0x80, 256, 'a'};
  const std::vector<std::string> stops = {"ab", "b w", "\xE2\x82\xAC", "w ww", "ba"};
  std::mt19937 random(7);
  int found = 0;
  for (int run = 0; run < 500; ++run) {
    StopMatcher matcher(ByteFallback, stops);
    std::vector<int32_t> ids;
    for (int t = 0; t < 60; ++t) {
      ids.push_back(pieces[random() % pieces.size()]);
      const auto at = matcher.Check(ids);
      const std::optional<size_t> want = Check(stops, ids, ByteFallback);
      ASSERT_EQ(*at, want) << "run " << run << " token " << t;
      if (!want) continue;
      ++found;
      break;
    }
  }
  EXPECT_GT(found, 100);
}

TEST(StopMatcher, BytesOfAnUnfinishedCharacterAreNoReplacementCharacter) {
  const std::string ghost = "\xF0\x9F\x91\xBB";
  std::vector<int32_t> ids = Ids("a" + ghost);
  ids.pop_back();
  EXPECT_EQ(Check({"\xEF\xBF\xBD"}, ids), std::nullopt);
}

TEST(StopMatcher, DropsAtMostThreeReplacementCharactersAndAtTheEndOnly) {
  const std::string& bad = kReplacement;
  EXPECT_EQ(WithoutUnfinishedCharacter("a" + bad + "b" + bad + bad), "a" + bad + "b");
  EXPECT_EQ(WithoutUnfinishedCharacter("plain"), "plain");
  EXPECT_EQ(WithoutUnfinishedCharacter(bad), "");
  EXPECT_EQ(WithoutUnfinishedCharacter(bad + bad + bad + bad), bad);
}

}  // namespace
}  // namespace tandem::rollout
