#include "rollout_server/completions/choice_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace tandem::rollout {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kEnd = 2;  // <|im_end|>, a special token

const Tokenizer& SmallTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      *Tokenizer::Load(std::string(TANDEM_SOURCE_DIR) + "/tests/testdata/smollm2-tokenizer");
  return *tokenizer;
}

TextRules Rules(std::vector<std::string> stop_strings = {}, std::vector<int32_t> stop_ids = {}) {
  const SamplingParams sampling = {.stop_token_ids = std::move(stop_ids)};
  return {.tokenizer = &SmallTokenizer(),
          .stop_strings = std::move(stop_strings),
          .stop_ids = StopIds(sampling, std::vector<int32_t>{kEnd}, SmallTokenizer().vocab_size())};
}

FinishedCompletion Ended(std::vector<int32_t> ids, FinishReason reason) {
  FinishedCompletion completion;
  completion.token_ids = std::move(ids);
  completion.finish_reason = reason;
  return completion;
}

// What is given with each token, and at the end.
std::vector<std::string> Pieces(const TextRules& rules, const FinishedCompletion& completion) {
  ChoiceText text(&rules);
  std::vector<std::string> pieces;
  for (const int32_t id : completion.token_ids) pieces.push_back(*text.Add(id));
  pieces.push_back(*text.Finish(completion));
  return pieces;
}

std::vector<int32_t> IdsOf(const std::string& text) { return *SmallTokenizer().Encode(text); }

TEST(ChoiceText, GivesTheTextOfEachToken) {
  const TextRules rules = Rules();
  EXPECT_THAT(Pieces(rules, Ended(IdsOf("One two"), FinishReason::kLength)),
              ElementsAre("One", " two", ""));
}

TEST(ChoiceText, HoldsBackACharacterUntilItsLastToken) {
  const TextRules rules = Rules();
  const std::vector<int32_t> ids = IdsOf("日");
  ASSERT_EQ(ids.size(), 2u) << "two tokens for three bytes";
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kLength)), ElementsAre("", "日", ""));
}

TEST(ChoiceText, GivesAnUnfinishedCharacterAtTheEndAsAReplacement) {
  const TextRules rules = Rules();
  std::vector<int32_t> ids = IdsOf("日");
  ids.pop_back();
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kLength)), ElementsAre("", "\xEF\xBF\xBD"));
}

TEST(ChoiceText, HoldsBackWhatMayBeginAStopStringUntilItDoesNot) {
  const TextRules rules = Rules({" two three"});
  EXPECT_THAT(Pieces(rules, Ended(IdsOf("One two four"), FinishReason::kLength)),
              ElementsAre("One", "", " two four", ""));
  EXPECT_THAT(Pieces(rules, Ended(IdsOf("One two"), FinishReason::kLength)),
              ElementsAre("One", "", " two"));
}

TEST(ChoiceText, GivesNothingOfAStopStringUnlessItIsWanted) {
  TextRules rules = Rules({" two"});
  const FinishedCompletion completion = Ended(IdsOf("One two"), FinishReason::kStopString);
  EXPECT_THAT(Pieces(rules, completion), ElementsAre("One", "", ""));
  EXPECT_EQ(StopStringOf(rules, completion), " two");
  rules.include_stop = true;
  EXPECT_THAT(Pieces(rules, completion), ElementsAre("One", "", " two"));
}

TEST(ChoiceText, OfTwoStopStringsAtOnePlaceTheOneListedFirstIsNamedAndShown) {
  TextRules rules = Rules({" two three", " two"});
  rules.include_stop = true;
  const FinishedCompletion completion = Ended(IdsOf("One two three"), FinishReason::kStopString);
  EXPECT_EQ(StopStringOf(rules, completion), " two three");
  EXPECT_EQ(*TextOf(rules, completion), "One two three");
}

TEST(ChoiceText, GivesNothingOfAStopTokenUnlessItIsWanted) {
  const std::vector<int32_t> ids = IdsOf("One two");
  TextRules rules = Rules({}, {ids.back()});
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kStop)), ElementsAre("One", "", ""));
  rules.include_stop = true;
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kStop)), ElementsAre("One", " two", ""));
}

TEST(ChoiceText, LeavesOutSpecialTokensUnlessTheyAreWanted) {
  std::vector<int32_t> ids = IdsOf("One");
  ids.insert(ids.begin(), 1);  // <|im_start|>
  TextRules rules = Rules();
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kLength)), ElementsAre("", "One", ""));
  rules.skip_special_tokens = false;
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kLength)),
              ElementsAre("<|im_start|>", "One", ""));
}

TEST(ChoiceText, AStopStringOfSpecialTokensThatAreNotShownCutsNothing) {
  std::vector<int32_t> ids = IdsOf("One two");
  ids.push_back(1);
  const TextRules rules = Rules({"<|im_start|>"});
  EXPECT_THAT(Pieces(rules, Ended(ids, FinishReason::kStopString)),
              ElementsAre("One", " two", "", ""));
}

}  // namespace
}  // namespace tandem::rollout
