#include "cli/data/data_preview.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/data/token_text.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(DataPreview, QuantilesAreValuesThatThereAre) {
  const std::vector<int64_t> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(NearestRank(values, 0), 1);
  EXPECT_EQ(NearestRank(values, 0.5), 5);
  EXPECT_EQ(NearestRank(values, 0.9), 9);
  EXPECT_EQ(NearestRank(values, 0.91), 10);
  EXPECT_EQ(NearestRank(values, 1), 10);
  EXPECT_EQ(NearestRank({}, 0.5), 0);
}

TEST(DataPreview, AHistogramCoversEveryValue) {
  EXPECT_THAT(Histogram({1, 1, 2, 6}, 3, 4),
              ElementsAre("      1 .. 2             3 ####", "      3 .. 4             0 ",
                          "      5 .. 6             1 ##"));
  EXPECT_THAT(Histogram({5, 5}, 10, 2), ElementsAre("      5 .. 5             2 ##"));
  EXPECT_THAT(Histogram({}, 10, 2), ElementsAre());
}

class PreviewTest : public ::testing::Test {
 protected:
  PreviewTest() {
    tokenizer_ = *Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer");
  }

  DataPreview Preview(const std::string& contents, const Tokenizer* tokenizer = nullptr,
                      const trainer::DataOptions& options = {}) {
    EXPECT_THAT(WriteFileAtomically(directory_ / "p.jsonl", contents), IsOk());
    auto preview = PreviewData(directory_ / "p.jsonl", {}, options, tokenizer, 2, [](int64_t) {});
    EXPECT_THAT(preview, IsOk());
    return *std::move(preview);
  }

  TempDir directory_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(PreviewTest, CountsWhatIsThereAndWhatIsNot) {
  const DataPreview preview = Preview(
      "{\"prompt\": \"one\", \"answer\": 1}\n{\"prompt\": \"one\", \"answer\": null}\n"
      "{\"question\": \"f\xc3\xbcr\", \"answer\": 2, \"level\": 3}\n{\"text\": \"?\"}\n");
  EXPECT_EQ(preview.num_rows, 4);
  EXPECT_EQ(preview.num_duplicates, 1);
  EXPECT_EQ(preview.num_without_answer, 1);
  EXPECT_EQ(preview.num_wrong, 1);
  EXPECT_THAT(preview.first_error, HasSubstr("p.jsonl:4: no \"prompt\""));
  EXPECT_THAT(preview.columns, ElementsAre(Pair("prompt", 2), Pair("answer", 2),
                                           Pair("question", 1), Pair("level", 1), Pair("text", 1)));
  EXPECT_THAT(preview.layouts, ElementsAre(Pair("gsm8k: question / answer", 1),
                                           Pair("own columns: prompt / no answer", 1),
                                           Pair("plain: prompt / answer", 1)));
  EXPECT_THAT(preview.lengths, ElementsAre(3, 3, 3)) << "characters, not bytes";
  const std::vector<std::string> lines = SummaryLines(preview, {});
  EXPECT_THAT(lines[0], HasSubstr("p.jsonl: JSON lines, 4 rows"));
  EXPECT_THAT(lines.back(), HasSubstr("1 row cannot be used, the first: "));
}

TEST_F(PreviewTest, LengthsAreThoseOfTheRenderedPromptAndAreComparedWithTheLimits) {
  const DataPreview preview = Preview("{\"prompt\": \"a\", \"answer\": 1}\n", tokenizer_.get());
  ASSERT_EQ(preview.lengths.size(), 1u);
  const int64_t length = preview.lengths[0];
  EXPECT_EQ(std::ssize(preview.first[0].ids), length);
  const auto lines =
      SummaryLines(preview, {.max_prompt_tokens = length - 1, .context_tokens = length});
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("over max_prompt_tokens " +
                                                   std::to_string(length - 1) + ": 1")));
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("that the context leaves: 0")));
}

TEST_F(PreviewTest, PlainTokensAreTheTextAndColouredOnesHaveTwoBackgroundsInTurn) {
  const auto ids = tokenizer_->Encode("<|im_start|>user\n\xf0\x9f\x99\x82 hi");
  ASSERT_THAT(ids, IsOk());
  const auto plain = ShowTokens(*ids, *tokenizer_, /*in_colour=*/false);
  ASSERT_THAT(plain, IsOk());
  EXPECT_EQ(plain->text, "<|im_start|>user\n\xf0\x9f\x99\x82 hi");
  EXPECT_THAT(plain->special, ElementsAre(Pair("<|im_start|>", 1)));
  const auto coloured = ShowTokens(*ids, *tokenizer_, /*in_colour=*/true);
  EXPECT_THAT(coloured->text, HasSubstr("\x1b[1;48;5;90m<|im_start|>\x1b[0m"));
  EXPECT_THAT(coloured->text, HasSubstr("\x1b[48;5;24muser\x1b[0m"));
  EXPECT_THAT(coloured->text, HasSubstr("\xf0\x9f\x99\x82"))
      << "parts of one character stay together";
}

}  // namespace
}  // namespace tandem::cli
