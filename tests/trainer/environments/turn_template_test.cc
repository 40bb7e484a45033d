#include "trainer/environments/turn_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr char kAsk[] = R"([{"role":"user","content":"What is 2 + 2?"}])";
constexpr char kResult[] = R"([{"role":"user","content":"not quite: try again"}])";
constexpr int32_t kEnd = 2;  // <|im_end|> of SmolLM2

// The tokenizer of SmolLM2 with `chat_template` in place of its own, unless that is empty.
class TurnTemplateTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> Load(const std::string& chat_template = "") {
    const std::string source =
        std::string(TANDEM_SOURCE_DIR) + "/tests/testdata/smollm2-tokenizer/";
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      EXPECT_THAT(WriteFileAtomically(directory_ / file, *ReadFile(source + file)), IsOk());
    }
    const std::string own = *ReadFile(source + "chat_template.jinja");
    EXPECT_THAT(WriteFileAtomically(directory_ / "chat_template.jinja",
                                    chat_template.empty() ? own : chat_template),
                IsOk());
    auto loaded = Tokenizer::Load(directory_.path());
    EXPECT_THAT(loaded, IsOk());
    return *std::move(loaded);
  }

  tandem::testing::TempDir directory_;
};

TEST_F(TurnTemplateTest, PromptTurnAndGivenIdsAreThoseOfTheWholeConversation) {
  const auto tokenizer = Load();
  const auto made = TurnTemplate::Create(tokenizer.get(), {kEnd});
  ASSERT_THAT(made, IsOk());
  const auto given = made->IdsAfter(kAsk, kResult, true);
  ASSERT_THAT(given, IsOk());
  std::vector<int32_t> ids = *tokenizer->Encode(*tokenizer->RenderChat(kAsk, true));
  const std::vector<int32_t> turn = *tokenizer->Encode("It is five.<|im_end|>");
  ids.insert(ids.end(), turn.begin(), turn.end());
  ids.insert(ids.end(), given->begin(), given->end());
  const std::string whole =
      R"([{"role":"user","content":"What is 2 + 2?"},{"role":"assistant","content":"It is five."},)"
      R"({"role":"user","content":"not quite: try again"}])";
  EXPECT_EQ(ids, *tokenizer->Encode(*tokenizer->RenderChat(whole, true)));
  EXPECT_EQ(tokenizer->Decode(*given, false).value(),
            "\n<|im_start|>user\nnot quite: try again<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TurnTemplateTest, ATurnThatAStopStringEndedGetsItsEndToken) {
  const auto tokenizer = Load();
  const auto made = TurnTemplate::Create(tokenizer.get(), {kEnd}).value();
  std::vector<int32_t> want = made.IdsAfter(kAsk, kResult, true).value();
  want.insert(want.begin(), kEnd);
  EXPECT_EQ(made.IdsAfter(kAsk, kResult, false).value(), want);
}

// Qwen3's template drops what an assistant thought before the last user message.
TEST_F(TurnTemplateTest, ATemplateThatRewritesEarlierTurnsChangesNothing) {
  const auto tokenizer = Load(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{% if loop.revindex > 2 %}(left out){% else %}{{ m.content }}{% endif %}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const auto made = TurnTemplate::Create(tokenizer.get(), {kEnd});
  ASSERT_THAT(made, IsOk());
  const std::string before =
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"long thoughts"},)"
      R"({"role":"user","content":"and?"}])";
  EXPECT_EQ(tokenizer->Decode(*made->IdsAfter(before, kResult, true), false).value(),
            "\n<|im_start|>user\nnot quite: try again<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TurnTemplateTest, TextOfAnEnvironmentThatLooksLikeTheMarkerDoesNoHarm) {
  const auto tokenizer = Load();
  const auto made = TurnTemplate::Create(tokenizer.get(), {kEnd}).value();
  const auto given =
      made.IdsAfter(kAsk, R"([{"role":"user","content":"TurnOfTheModel"}])", true).value();
  EXPECT_EQ(tokenizer->Decode(given, false).value(),
            "\n<|im_start|>user\nTurnOfTheModel<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TurnTemplateTest, SaysWhatATemplateLacks) {
  auto tokenizer = Load(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}"
      "{% endif %}{% endfor %}");
  EXPECT_THAT(TurnTemplate::Create(tokenizer.get(), {kEnd}),
              FailsWith(absl::StatusCode::kInvalidArgument, "does not show the assistant message"));
  tokenizer = Load("{% for m in messages %}{{ m.content }}\n{% endfor %}");
  EXPECT_THAT(TurnTemplate::Create(tokenizer.get(), {kEnd}),
              FailsWith(absl::StatusCode::kInvalidArgument, "none of the model's end tokens"));
  EXPECT_THAT(TurnTemplate::Create(tokenizer.get(), {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "none of the model's 0 end tokens"));
}

TEST_F(TurnTemplateTest, MalformedMessagesAreRefused) {
  const auto tokenizer = Load();
  const auto made = TurnTemplate::Create(tokenizer.get(), {kEnd}).value();
  EXPECT_THAT(made.IdsAfter("{}", kResult, true),
              FailsWith(absl::StatusCode::kInvalidArgument, "before the turn: want a JSON array"));
  EXPECT_THAT(made.IdsAfter(kAsk, "[]", true),
              FailsWith(absl::StatusCode::kInvalidArgument, "no message follows the turn"));
}

// Two ids whose text is one other id: what was sampled is not what its text is tokenised to.
TEST_F(TurnTemplateTest, WhatWasSampledIsNotWhatItsTextIsTokenisedTo) {
  const auto tokenizer = Load();
  std::vector<int32_t> sampled = *tokenizer->Encode("he");
  const std::vector<int32_t> rest = *tokenizer->Encode("llo");
  sampled.insert(sampled.end(), rest.begin(), rest.end());
  const std::string text = tokenizer->Decode(sampled, false).value();
  EXPECT_EQ(text, "hello");
  EXPECT_NE(*tokenizer->Encode(text), sampled);
}

}  // namespace
}  // namespace tandem::trainer
