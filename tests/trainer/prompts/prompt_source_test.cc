#include "trainer/prompts/prompt_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(EpochOrder, IsAPermutationOfSeedAndEpochAlone) {
  const auto order = EpochOrder(50, 7, 3);
  EXPECT_EQ(order, EpochOrder(50, 7, 3));
  EXPECT_NE(order, EpochOrder(50, 7, 4));
  EXPECT_NE(order, EpochOrder(50, 8, 3));
  auto sorted = order;
  std::ranges::sort(sorted);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
}

class PromptSourceTest : public ::testing::Test {
 protected:
  PromptSourceTest() {
    auto tokenizer = Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer");
    EXPECT_THAT(tokenizer, IsOk());
    tokenizer_ = *std::move(tokenizer);
  }

  absl::StatusOr<std::unique_ptr<PromptSource>> Open(const std::string& contents,
                                                     const DataOptions& options = {}) {
    EXPECT_THAT(WriteFileAtomically(directory_ / "p.jsonl", contents), IsOk());
    return PromptSource::Open(directory_ / "p.jsonl", options, 1, *tokenizer_);
  }

  TempDir directory_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

constexpr char kThree[] =
    "{\"prompt\": \"a\", \"answer\": \"1\"}\n\n{\"prompt\": \"b\", \"answer\": \"2\"}\r\n"
    "{\"prompt\": \"What is 3 * 4? Answer with just the number.\", \"answer\": \"12\"}";

TEST_F(PromptSourceTest, GivesEachPromptOncePerEpochAndCountsLines) {
  auto source = Open(kThree);
  ASSERT_THAT(source, IsOk());
  for (const int64_t epoch : {0, 1}) {
    std::vector<int64_t> lines;
    for (int64_t i = 0; i < 3; ++i) {
      const auto& prompt = (*source)->At(3 * epoch + i);
      EXPECT_EQ(prompt.epoch(), epoch);
      lines.push_back(prompt.index());
    }
    EXPECT_THAT(lines, UnorderedElementsAre(0, 2, 3));
  }
}

TEST_F(PromptSourceTest, TheCursorAloneDecidesWhichPromptComes) {
  auto straight = Open(kThree);
  auto resumed = Open(kThree);
  ASSERT_THAT(straight, IsOk());
  ASSERT_THAT(resumed, IsOk());
  for (int64_t i = 0; i < 7; ++i) (*straight)->At(i);
  EXPECT_EQ((*straight)->At(7).text(), (*resumed)->At(7).text());
}

TEST_F(PromptSourceTest, TheDigestIsOfWhichPromptsComeAndInWhichOrder) {
  const auto digest = [&](const std::string& contents, bool shuffle = true) {
    return (*Open(contents, {.shuffle = shuffle}))->digest();
  };
  const std::string a = "{\"prompt\": \"a\", \"answer\": 1}\n";
  const std::string b = "{\"prompt\": \"b\", \"answer\": 1}\n";
  EXPECT_EQ(digest(a + b), digest(a + "\n{\"answer\": 2, \"prompt\": \"b\"}\n"))
      << "an answer that was corrected is no other prompt";
  EXPECT_NE(digest(a + b), digest(b + a));
  EXPECT_NE(digest(a + b), digest(a + b + a));
  EXPECT_NE(digest(a + b), digest(a + b, /*shuffle=*/false));
}

TEST_F(PromptSourceTest, RendersTheChatTemplateOnce) {
  DataOptions options;
  options.shuffle = false;
  auto source = Open(kThree, options);
  ASSERT_THAT(source, IsOk());
  const auto& prompt = (*source)->At(2);
  EXPECT_THAT(prompt.text(),
              HasSubstr("<|im_start|>user\nWhat is 3 * 4? Answer with just the number."
                        "<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(prompt.token_ids_size(), 44);
  EXPECT_EQ(prompt.answer(), "12");
}

TEST_F(PromptSourceTest, PlainTextStaysPlain) {
  DataOptions options;
  options.chat = false;
  options.shuffle = false;
  options.suffix = " =";
  auto source = Open(kThree, options);
  ASSERT_THAT(source, IsOk());
  EXPECT_EQ((*source)->At(0).text(), "a =");
  EXPECT_THAT(
      Open("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": 1}", options),
      FailsWith(absl::StatusCode::kInvalidArgument, "p.jsonl:1: a list of messages needs"));
}

TEST_F(PromptSourceTest, LongPromptsAreRefusedOrDroppedAndCounted) {
  DataOptions options;
  options.chat = false;
  options.max_prompt_tokens = 5;
  EXPECT_THAT(Open(kThree, options),
              FailsWith(absl::StatusCode::kInvalidArgument, "p.jsonl:4: the prompt has"));
  options.over_length = OverLength::kDrop;
  auto source = Open(kThree, options);
  ASSERT_THAT(source, IsOk());
  EXPECT_EQ((*source)->num_dropped(), 1);
  EXPECT_EQ((*source)->prompts().size(), 2u);
}

TEST_F(PromptSourceTest, AnEmptyFileIsAnError) {
  EXPECT_THAT(Open("\n\n"), FailsWith(absl::StatusCode::kInvalidArgument, "no prompt (2 lines"));
}

}  // namespace
}  // namespace tandem::trainer
