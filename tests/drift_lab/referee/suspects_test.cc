#include "drift_lab/referee/suspects.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::TinyModelConfig;
using ::tandem::testing::WriteTinyModel;

// The suspects for a prompt that begins with `begin`, of a model with this template.
std::vector<Suspect> SuspectsOf(const std::string& chat_template, const std::string& begin,
                                const ModelConfig& config = TinyModelConfig()) {
  const TempDir directory;
  EXPECT_THAT(WriteTinyModel(directory.path(), TANDEM_SOURCE_DIR, config, 1), IsOk());
  std::ofstream(directory.path() + "/chat_template.jinja") << chat_template;
  const auto model = RefereeModel::Load(directory.path(), "");
  EXPECT_THAT(model, IsOk());
  const auto tokenizer = Tokenizer::Load(directory.path());
  EXPECT_THAT(tokenizer, IsOk());
  RefereeRow row;
  row.ids = (*tokenizer)->Encode(begin + "<|im_start|>user\nHello<|im_end|>\n").value();
  row.prompt_length = static_cast<int64_t>(row.ids.size());
  return ForwardSuspects(**model, {&row, 1});
}

std::vector<std::string> TextsOf(const std::string& chat_template, const std::string& begin) {
  std::vector<std::string> texts;
  for (const Suspect& suspect : SuspectsOf(chat_template, begin)) texts.push_back(suspect.text);
  return texts;
}

// The one about the system message that the template writes.
Suspect AboutTheSystemMessage(const std::string& chat_template, const std::string& begin) {
  const std::vector<Suspect> suspects = SuspectsOf(chat_template, begin);
  const auto found = std::ranges::find_if(suspects, [](const Suspect& suspect) {
    return suspect.text.find("system message") != std::string::npos;
  });
  return found == suspects.end() ? Suspect{} : *found;
}

constexpr char kWithLineEnds[] =
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% "
    "endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
    "}}{% endfor %}";

TEST(SuspectsTest, TheTemplatesSystemMessageMayBeMissingHoweverItsLineEndsAreWritten) {
  const std::string system = "<|im_start|>system\nBe brief.<|im_end|>\n";
  std::string escaped = kWithLineEnds;
  for (size_t at; (at = escaped.find('\n')) != std::string::npos;) escaped.replace(at, 1, "\\n");
  for (const std::string& text : {std::string(kWithLineEnds), escaped}) {
    const Suspect missing = AboutTheSystemMessage(text, system);
    EXPECT_EQ(missing.text, "the template's system message is missing");
    EXPECT_EQ(missing.variant.edit, PromptEdit::kDropIds);
    EXPECT_GE(missing.variant.edit_ids.size(), 7)
        << "two special tokens, two words, a stop, two line ends";
    const Suspect added = AboutTheSystemMessage(text, "");
    EXPECT_EQ(added.text, "the template's own system message stands before the prompt");
    EXPECT_EQ(added.variant.edit_ids, missing.variant.edit_ids);
  }
}

TEST(SuspectsTest, APromptMayHaveLostItsBeginningOrItsEndToALimitBelowItsLength) {
  std::string words = "<|im_start|>user\n";
  for (int i = 0; i < 100; ++i) words += " word";
  const std::vector<std::string> texts = TextsOf(kWithLineEnds, words);
  EXPECT_EQ(std::ranges::count(texts, "prompts are cut to their last 64 tokens"), 1);
  EXPECT_EQ(std::ranges::count(texts, "prompts are cut to their first 64 tokens"), 1);
  EXPECT_EQ(std::ranges::count(texts, "prompts are cut to their last 128 tokens"), 0);
}

TEST(SuspectsTest, NoIdBeyondTheModelsVocabularyIsPutIntoAPrompt) {
  ModelConfig config = TinyModelConfig();
  config.vocab_size = 100;  // the words of the system message have larger ids
  for (const Suspect& suspect : SuspectsOf(kWithLineEnds, "", config)) {
    EXPECT_EQ(suspect.text.find("system message"), std::string::npos) << suspect.text;
    for (const int32_t id : suspect.variant.edit_ids) EXPECT_LT(id, 100) << suspect.text;
  }
}

TEST(SuspectsTest, ATemplateWithoutASystemMessageSuggestsNone) {
  EXPECT_EQ(AboutTheSystemMessage("{% for m in messages %}{{ m['content'] }}{% endfor %}", "").text,
            "");
}

}  // namespace
}  // namespace tandem::drift
