#include "trainer/prompts/prompt_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

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

// Data sets of a run, by the texts of their prompts.
class RunPromptsTest : public PromptSourceTest {
 protected:
  // A file of `count` prompts "NAME0", "NAME1", ..
  std::string Write(const std::string& name, int count) {
    std::string rows;
    for (int i = 0; i < count; ++i) {
      rows += "{\"prompt\": \"" + name + std::to_string(i) + "\", \"answer\": 1}\n";
    }
    EXPECT_THAT(WriteFileAtomically(directory_ / (name + ".jsonl"), rows), IsOk());
    return directory_ / (name + ".jsonl");
  }

  absl::StatusOr<RunPrompts> OpenRun(const DataOptions& options) {
    ModelConfig model;
    model.max_position_embeddings = 100;
    return OpenRunPrompts(options, /*run_seed=*/1, {.tokens = 50}, model, *tokenizer_);
  }

  static std::vector<std::string> Texts(PromptSource& source, int64_t first, int64_t count) {
    std::vector<std::string> texts;
    for (int64_t i = first; i < first + count; ++i) texts.push_back(source.At(i).text());
    return texts;
  }
};

TEST_F(RunPromptsTest, AMixtureTakesItsShareOfEachAndGoesThroughEachOnceAnEpoch) {
  const DataOptions options = {.mixture = {{Write("a", 4), 3}, {Write("b", 2), 1}}, .chat = false};
  auto run = OpenRun(options);
  ASSERT_THAT(run, IsOk());
  const auto texts = Texts(*run->train, 0, 16);
  // Three of four are of a, so an epoch of a is 16/3 places long.
  EXPECT_EQ(std::ranges::count_if(texts, [](const auto& t) { return t.starts_with('a'); }), 12);
  std::vector<std::string> of_a;
  for (const std::string& text : texts) {
    if (text.starts_with('a')) of_a.push_back(text);
  }
  for (const int epoch : {0, 1, 2}) {
    EXPECT_THAT(std::vector(of_a.begin() + 4 * epoch, of_a.begin() + 4 * epoch + 4),
                UnorderedElementsAre("a0", "a1", "a2", "a3"));
  }
  auto resumed = OpenRun(options);
  EXPECT_EQ(Texts(*resumed->train, 11, 5), std::vector(texts.begin() + 11, texts.end()));
  std::set<int64_t> indices;
  for (const auto& prompt : run->train->prompts()) indices.insert(prompt.index());
  EXPECT_EQ(indices, (std::set<int64_t>{0, 1, 2, 3, 4, 5})) << "indices are of one prompt each";
}

TEST_F(RunPromptsTest, TheDigestOfAMixtureIsOfItsWeightsToo) {
  const std::string a = Write("a", 2), b = Write("b", 2);
  const auto digest = [&](double of_b) {
    return (*OpenRun({.mixture = {{a, 1}, {b, of_b}}, .chat = false})).train->digest();
  };
  EXPECT_EQ(digest(2), digest(2));
  EXPECT_NE(digest(2), digest(3));
}

// The order and the digest that runs before mixtures had: a change would keep them from resuming.
TEST_F(RunPromptsTest, OneDataSetHasTheOrderAndDigestThatItAlwaysHad) {
  auto run = OpenRun({.train = Write("a", 6), .chat = false});
  ASSERT_THAT(run, IsOk());
  const auto order = EpochOrder(6, 1, 0);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(run->train->At(i).text(), "a" + std::to_string(order[static_cast<size_t>(i)]));
  }
  // Python: xxh3_128 over [1, xxh3_64 of the ids of each prompt], by the package xxhash.
  EXPECT_EQ(run->train->digest(), "c95d3d67e975a7a6de2d69d6acaaf7cc");
}

TEST_F(RunPromptsTest, AShareIsHeldOutWithAllRowsOfAPrompt) {
  std::string rows;
  for (int i = 0; i < 200; ++i) {
    rows += "{\"prompt\": \"p" + std::to_string(i % 100) + "\", \"answer\": 1}\n";
  }
  ASSERT_THAT(WriteFileAtomically(directory_ / "p.jsonl", rows), IsOk());
  const DataOptions options = {.train = directory_ / "p.jsonl", .eval_share = 0.2, .chat = false};
  auto run = OpenRun(options);
  ASSERT_THAT(run, IsOk());
  std::set<std::string> train, eval;
  for (const auto& prompt : run->train->prompts()) train.insert(prompt.text());
  for (const auto& prompt : run->eval->prompts()) eval.insert(prompt.text());
  EXPECT_EQ(train.size() + eval.size(), 100u) << "no prompt is on both sides";
  EXPECT_EQ(run->train->prompts().size() + run->eval->prompts().size(), 200u);
  EXPECT_GT(eval.size(), 5u);
  EXPECT_LT(eval.size(), 40u);
}

TEST_F(RunPromptsTest, WhatDoesNotFitTogetherIsRefused) {
  const std::string a = Write("a", 2);
  const auto fails = [&](const DataOptions& options) { return OpenRun(options).status(); };
  EXPECT_THAT(fails({}), FailsWith(absl::StatusCode::kInvalidArgument, "data.train is empty"));
  EXPECT_THAT(fails({.train = a, .mixture = {{a, 1}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "are both set"));
  EXPECT_THAT(fails({.train = a, .eval = a, .eval_share = 0.1}),
              FailsWith(absl::StatusCode::kInvalidArgument, "eval and trainer.data.eval_share"));
  EXPECT_THAT(fails({.mixture = {{a, 0}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "want a number over 0"));
  EXPECT_THAT(fails({.mixture = {{a, 1}}, .split = "train"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "PATH:SPLIT"));
  EXPECT_THAT(fails({.train = a, .eval_share = 1e-9}),
              FailsWith(absl::StatusCode::kInvalidArgument, "holds out none of 2 prompts"));
}

TEST_F(RunPromptsTest, ThePlaceOfTheLongestPromptIsNamed) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "p.csv",
                                  "prompt,answer\nshort,1\n\"" + std::string(400, 'x') + "\",1\n"),
              IsOk());
  EXPECT_THAT(OpenRun({.train = directory_ / "p.csv", .chat = false}),
              FailsWith(absl::StatusCode::kInvalidArgument, "p.csv: row 2: "));
}

TEST_F(RunPromptsTest, EveryFormatGivesTheSamePromptsWithTheirRows) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "p.csv", "prompt,answer,level\n2+2?,4,easy\n"),
              IsOk());
  auto run = OpenRun({.train = directory_ / "p.csv", .chat = false});
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->train->At(0).source_json(),
            "{\"prompt\":\"2+2?\",\"answer\":\"4\",\"level\":\"easy\"}");
  EXPECT_EQ(run->train->At(0).answer(), "4");
}

}  // namespace
}  // namespace tandem::trainer
