#include "trainer/preferences/preference_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kChatModel[] = TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer";
constexpr int32_t kEnd = 2;  // <|im_end|> of SmolLM2

class PreferenceDataTest : public ::testing::Test {
 protected:
  PreferenceDataTest() : tokenizer_(Tokenizer::Load(kChatModel).value()) {}

  absl::StatusOr<PreferenceData> Read(const std::string& lines,
                                      const PreferenceDataOptions& options = {},
                                      int64_t context_tokens = 1000) {
    EXPECT_THAT(WriteFileAtomically(dir_ / "p.jsonl", lines), IsOk());
    return ReadPreferenceData(dir_ / "p.jsonl", options, *tokenizer_, kEnd, context_tokens);
  }
  std::string Text(const std::vector<int32_t>& ids) {
    return tokenizer_->Decode(ids, /*skip_special_tokens=*/false).value();
  }
  // The same vocabulary, in a directory without a chat template.
  void LeaveOutTheTemplate() {
    const auto json = ReadFile(absl::StrCat(kChatModel, "/tokenizer.json"));
    EXPECT_THAT(WriteFileAtomically(dir_ / "tokenizer.json", *json), IsOk());
    tokenizer_ = Tokenizer::Load(dir_.path()).value();
  }

  TempDir dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

constexpr char kPair[] = R"({"prompt": "2+2?", "chosen": "4", "rejected": "It is 5"})"
                         "\n";

TEST_F(PreferenceDataTest, RendersThePromptAndEndsCompletions) {
  const auto data = Read(absl::StrCat("\n", kPair));
  ASSERT_THAT(data, IsOk());
  ASSERT_THAT(data->pairs, SizeIs(1));
  const PreferencePair& pair = data->pairs[0];
  EXPECT_EQ(Text(pair.prompt),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Text(pair.chosen), "4<|im_end|>");
  EXPECT_EQ(Text(pair.rejected), "It is 5<|im_end|>");
  EXPECT_EQ(pair.row, 2);
  EXPECT_FALSE(data->has_margins());
}

TEST_F(PreferenceDataTest, AnEndTokenInTheTextIsNotDoubled) {
  const auto data = Read(R"({"prompt": "a", "chosen": "4<|im_end|>", "rejected": "5"})");
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(Text(data->pairs[0].chosen), "4<|im_end|>");
}

TEST_F(PreferenceDataTest, DialoguesAndMessagesBecomeTheSameIds) {
  constexpr char kDialogue[] =
      R"({"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: It is 5"})";
  constexpr char kMessages[] =
      R"({"prompt": [{"role": "user", "content": "2+2?"}], "chosen": [{"role": "assistant", "content": "4"}], )"
      R"("rejected": [{"role": "assistant", "content": "It is 5"}]})";
  const auto data = Read(absl::StrCat(kPair, kDialogue, "\r\n", kMessages));
  ASSERT_THAT(data, IsOk());
  ASSERT_THAT(data->pairs, SizeIs(3));
  for (const PreferencePair& pair : data->pairs) {
    EXPECT_EQ(pair.prompt, data->pairs[0].prompt);
    EXPECT_EQ(pair.chosen, data->pairs[0].chosen);
    EXPECT_EQ(pair.rejected, data->pairs[0].rejected);
  }
}

TEST_F(PreferenceDataTest, WithoutATemplateTextsAreTakenAsTheyAre) {
  LeaveOutTheTemplate();
  const auto data = Read(absl::StrCat(
      kPair,
      R"({"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5"})"));
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(Text(data->pairs[0].prompt), "2+2?");
  EXPECT_EQ(Text(data->pairs[0].chosen), "4<|im_end|>");
  EXPECT_EQ(Text(data->pairs[1].prompt), "\n\nHuman: 2+2?\n\nAssistant:");
  EXPECT_EQ(Text(data->pairs[1].chosen), " 4<|im_end|>");
  EXPECT_THAT(
      Read(R"({"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"})"),
      FailsWith(absl::StatusCode::kUnimplemented, "p.jsonl:1: "));
}

TEST_F(PreferenceDataTest, ReadsLabelledCompletionsInTheOrderOfTheFile) {
  const auto data = Read(
      "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n"
      "{\"prompt\": \"a\", \"completion\": \"c\", \"label\": 0}\n");
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->pairs, IsEmpty());
  ASSERT_THAT(data->labelled, SizeIs(2));
  EXPECT_TRUE(data->labelled[0].desirable);
  EXPECT_FALSE(data->labelled[1].desirable);
  EXPECT_EQ(Text(data->labelled[1].completion), "c<|im_end|>");
}

TEST_F(PreferenceDataTest, RefusesRowsThatAreNotLikeTheFirst) {
  EXPECT_THAT(
      Read(absl::StrCat(kPair, R"({"prompt": "a", "completion": "b", "label": true})")),
      FailsWith(absl::StatusCode::kInvalidArgument,
                "p.jsonl:2: a completion with a label, but " + (dir_ / "p.jsonl:1 is a pair")));
  EXPECT_THAT(
      Read(absl::StrCat(kPair, R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1})")),
      FailsWith(absl::StatusCode::kInvalidArgument, "p.jsonl:2: a \"margin\", unlike"));
  const auto margins = Read(R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1})");
  ASSERT_THAT(margins, IsOk());
  EXPECT_TRUE(margins->has_margins());
}

constexpr char kUnusable[] =
    "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n"
    "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b<|im_end|>\"}\n";

TEST_F(PreferenceDataTest, RowsWithNothingToLearnAreRefusedOrCounted) {
  EXPECT_THAT(Read(absl::StrCat(kPair, kUnusable)),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "p.jsonl:2: \"chosen\" and \"rejected\" are equal; remove the row, or set "
                        "unusable_rows to drop"));
  const auto data = Read(absl::StrCat(kPair, kUnusable), {.unusable_rows = UnusableRows::kDrop});
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->pairs, SizeIs(1));
  EXPECT_EQ(data->counts.rows, 3);
  EXPECT_EQ(data->counts.dropped_unusable, 2);
  EXPECT_THAT(Read(kUnusable, {.unusable_rows = UnusableRows::kDrop}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "no row that can be used (2 rows, 0 too long, 2 with equal"));
}

TEST_F(PreferenceDataTest, ARowOfLowerScoreIsKeptAndCounted) {
  const auto data = Read(
      "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"score_chosen\": 3, "
      "\"score_rejected\": 3}\n"
      "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"score_chosen\": 4, "
      "\"score_rejected\": 3}\n");
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->pairs, SizeIs(2));
  EXPECT_EQ(data->counts.scored_against, 1);
  EXPECT_EQ(data->pairs[1].score_chosen, 4);
}

// Without a template, the prompt "a" is one token, and a completion a token for each " x".
constexpr char kLong[] =
    "{\"prompt\": \"a\", \"chosen\": \" x x x\", \"rejected\": \" y\"}\n"
    "{\"prompt\": \"a a a a\", \"chosen\": \" x\", \"rejected\": \" y\"}\n"
    "{\"prompt\": \"a\", \"chosen\": \" x x x x\", \"rejected\": \" x x x y\"}\n"
    "{\"prompt\": \"a\", \"chosen\": \" x x\", \"rejected\": \" y\"}\n";

TEST_F(PreferenceDataTest, LongRowsAreRefusedWithTheirNumbers) {
  LeaveOutTheTemplate();
  EXPECT_THAT(Read(kLong, {.max_tokens = 4}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "p.jsonl:1: the prompt has 1 tokens and the longest completion 4, limit 4; "
                        "remove the row, or set long_rows to truncate or drop"));
  EXPECT_THAT(Read(kLong, {}, 4), FailsWith(absl::StatusCode::kInvalidArgument, "limit 4"));
  EXPECT_THAT(Read(kLong, {.max_tokens = 4}, 3),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "max_row_tokens is 4, over the model's context of 3 tokens"));
}

TEST_F(PreferenceDataTest, LongRowsAreDroppedAndCounted) {
  LeaveOutTheTemplate();
  const auto data = Read(kLong, {.max_tokens = 4, .long_rows = LongRows::kDrop});
  ASSERT_THAT(data, IsOk());
  ASSERT_THAT(data->pairs, SizeIs(1));
  EXPECT_EQ(data->pairs[0].row, 4);
  EXPECT_EQ(data->counts.dropped_long, 3);
  EXPECT_EQ(data->counts.truncated, 0);
}

TEST_F(PreferenceDataTest, TruncatedCompletionsLoseTheirEndAndPromptsThatFillTheContextAreDropped) {
  LeaveOutTheTemplate();
  const auto data = Read(kLong, {.max_tokens = 4, .long_rows = LongRows::kTruncate});
  ASSERT_THAT(data, IsOk());
  // The second row has no room for a completion, and the sides of the third are equal once cut.
  ASSERT_THAT(data->pairs, SizeIs(2));
  EXPECT_EQ(Text(data->pairs[0].chosen), " x x x");
  EXPECT_EQ(Text(data->pairs[0].rejected), " y<|im_end|>");
  EXPECT_EQ(data->counts.truncated, 1);
  EXPECT_EQ(data->counts.dropped_long, 2);
}

TEST_F(PreferenceDataTest, ALabelledCompletionKeepsATokenOrIsDropped) {
  LeaveOutTheTemplate();
  const auto data = Read(
      "{\"prompt\": \"a a a\", \"completion\": \" x x\", \"label\": true}\n"
      "{\"prompt\": \"a a a a\", \"completion\": \" x\", \"label\": true}\n"
      "{\"prompt\": \"a a a a a\", \"completion\": \" x\", \"label\": true}\n",
      {.max_tokens = 4, .long_rows = LongRows::kTruncate});
  ASSERT_THAT(data, IsOk());
  ASSERT_THAT(data->labelled, SizeIs(1));
  EXPECT_EQ(Text(data->labelled[0].completion), " x");
  EXPECT_EQ(data->counts.truncated, 1);
  EXPECT_EQ(data->counts.dropped_long, 2);
}

std::string PairsOfPrompts(int prompts, int pairs_of_each) {
  std::string lines;
  for (int i = 0; i < prompts * pairs_of_each; ++i) {
    absl::StrAppend(&lines, "{\"prompt\": \"question ", i % prompts, "\", \"chosen\": \"yes ", i,
                    "\", \"rejected\": \"no\"}\n");
  }
  return lines;
}

TEST_F(PreferenceDataTest, HoldsOutWholePromptsBySeed) {
  auto data = Read(PairsOfPrompts(10, 3));
  ASSERT_THAT(data, IsOk());
  PreferenceData train = *data;
  const PreferenceData held_out = TakeHeldOut(train, 0.3, 7);
  EXPECT_THAT(held_out.pairs, SizeIs(9));
  EXPECT_THAT(train.pairs, SizeIs(21));
  std::set<std::vector<int32_t>> trained;
  for (const PreferencePair& pair : train.pairs) trained.insert(pair.prompt);
  for (const PreferencePair& pair : held_out.pairs) EXPECT_FALSE(trained.contains(pair.prompt));

  PreferenceData again = *data, other = *data;
  const PreferenceData same = TakeHeldOut(again, 0.3, 7);
  const PreferenceData differs = TakeHeldOut(other, 0.3, 8);
  std::vector<int64_t> rows, same_rows, other_rows;
  for (const auto& pair : held_out.pairs) rows.push_back(pair.row);
  for (const auto& pair : same.pairs) same_rows.push_back(pair.row);
  for (const auto& pair : differs.pairs) other_rows.push_back(pair.row);
  EXPECT_EQ(rows, same_rows);
  EXPECT_NE(rows, other_rows);
}

TEST_F(PreferenceDataTest, AShareOverZeroLeavesAPromptOnEitherSide) {
  const auto data = Read(PairsOfPrompts(2, 1));
  ASSERT_THAT(data, IsOk());
  for (const double share : {0.001, 1.0}) {
    PreferenceData train = *data;
    EXPECT_THAT(TakeHeldOut(train, share, 1).pairs, SizeIs(1));
    EXPECT_THAT(train.pairs, SizeIs(1));
  }
  PreferenceData train = *data;
  EXPECT_THAT(TakeHeldOut(train, 0, 1).pairs, IsEmpty());
}

TEST(Unpair, LabelsChosenAndRejected) {
  const std::vector<PreferencePair> pairs = {{.prompt = {1}, .chosen = {2}, .rejected = {3}},
                                             {.prompt = {4}, .chosen = {5}, .rejected = {6}}};
  const std::vector<LabelledCompletion> completions = Unpair(pairs);
  ASSERT_THAT(completions, SizeIs(4));
  EXPECT_THAT(completions[1].completion, ElementsAre(5));
  EXPECT_TRUE(completions[1].desirable);
  EXPECT_THAT(completions[2].prompt, ElementsAre(1));
  EXPECT_THAT(completions[2].completion, ElementsAre(3));
  EXPECT_FALSE(completions[2].desirable);
}

TEST(PreferenceDataOptions, AreReadByName) {
  PreferenceDataOptions options;
  OptionBinder binder;
  BindOptions(binder, options);
  ASSERT_THAT(
      binder.LoadString(
          "{max_row_tokens: 512, long_rows: truncate, unusable_rows: drop, held_out: 0.1}", "test"),
      IsOk());
  EXPECT_EQ(options.max_tokens, 512);
  EXPECT_EQ(options.long_rows, LongRows::kTruncate);
  EXPECT_EQ(options.unusable_rows, UnusableRows::kDrop);
  EXPECT_EQ(options.held_out, 0.1);
}

}  // namespace
}  // namespace tandem::trainer
