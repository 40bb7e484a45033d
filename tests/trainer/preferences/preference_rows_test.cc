#include "trainer/preferences/preference_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::Optional;

absl::StatusOr<PreferenceRow> ParseRow(const std::string& line) {
  return ParsePreferenceRow(line, "p.jsonl:3");
}

constexpr char kQuestion[] = R"([{"content":"2+2?","role":"user"}])";

TEST(ParsePreferenceRow, ReadsTexts) {
  const auto row = ParseRow(R"({"prompt": "2+2?", "chosen": "4", "rejected": "5", "margin": 0.5})");
  ASSERT_THAT(row, IsOk());
  EXPECT_TRUE(row->is_pair());
  EXPECT_EQ(row->prompt_text, "2+2?");
  EXPECT_EQ(row->prompt_messages, "");
  EXPECT_EQ(row->chosen, "4");
  EXPECT_EQ(row->rejected, "5");
  EXPECT_THAT(row->margin, Optional(0.5));
}

TEST(ParsePreferenceRow, ReadsMessagesWithAPrompt) {
  const auto row = ParseRow(R"({"prompt": [{"role": "user", "content": "2+2?"}],
      "chosen": [{"role": "assistant", "content": "4"}],
      "rejected": [{"role": "assistant", "content": "5"}]})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->prompt_messages, kQuestion);
  EXPECT_EQ(row->prompt_text, "");
  EXPECT_EQ(row->chosen, "4");
  EXPECT_EQ(row->rejected, "5");
  EXPECT_EQ(row->margin, std::nullopt);
}

TEST(ParsePreferenceRow, ReadsTheImplicitPromptOfMessages) {
  const auto row = ParseRow(R"({"chosen": [{"role": "user", "content": "2+2?"},
                                           {"role": "assistant", "content": "4"}],
                                "rejected": [{"role": "user", "content": "2+2?"},
                                             {"role": "assistant", "content": "5"}]})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->prompt_messages, kQuestion);
  EXPECT_EQ(row->chosen, "4");
  EXPECT_EQ(row->rejected, "5");
}

TEST(ParsePreferenceRow, ReadsAnUltraFeedbackRowWhosePromptIsRepeated) {
  const auto row = ParseRow(R"({"prompt": "2+2?", "prompt_id": "x",
      "chosen": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
      "rejected": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "5"}],
      "score_chosen": 8, "score_rejected": 6.5})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->prompt_messages, kQuestion);
  EXPECT_EQ(row->chosen, "4");
  EXPECT_THAT(row->score_chosen, Optional(8));
  EXPECT_THAT(row->score_rejected, Optional(6.5));
}

TEST(ParsePreferenceRow, ReadsDialoguesOfHhRlhf) {
  const auto row = ParseRow(
      R"({"chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 2+2?\n\nAssistant: It is\n\n4",
          "rejected": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 2+2?\n\nAssistant: 5 "})");
  ASSERT_THAT(row, IsOk());
  EXPECT_TRUE(row->is_dialogue());
  EXPECT_EQ(row->prompt_text, "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 2+2?\n\nAssistant:");
  EXPECT_EQ(row->prompt_messages,
            R"([{"content":"Hi","role":"user"},{"content":"Hello.","role":"assistant"},)"
            R"({"content":"2+2?","role":"user"}])");
  EXPECT_EQ(row->chosen, "It is\n\n4");
  EXPECT_EQ(row->rejected, "5");
}

TEST(ParsePreferenceRow, ReadsAPromptThatIsADialogue) {
  const auto row =
      ParseRow(R"({"prompt": "\n\nHuman: 2+2?\n\nAssistant:", "chosen": "4", "rejected": "5"})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->prompt_text, "\n\nHuman: 2+2?\n\nAssistant:");
  EXPECT_EQ(row->prompt_messages, kQuestion);
}

TEST(ParsePreferenceRow, ReadsLabels) {
  for (const auto& [label, desirable] :
       {std::pair{"true", true}, {"false", false}, {"1", true}, {"0", false}, {"1.0", true}}) {
    const auto row =
        ParseRow(std::string(R"({"prompt": "2+2?", "completion": "4", "label": )") + label + "}");
    ASSERT_THAT(row, IsOk());
    EXPECT_THAT(row->desirable, Optional(desirable)) << label;
    EXPECT_EQ(row->completion, "4");
  }
  const auto messages = ParseRow(R"({"prompt": [{"role": "user", "content": "2+2?"}],
      "completion": [{"role": "assistant", "content": "4"}], "label": true})");
  ASSERT_THAT(messages, IsOk());
  EXPECT_EQ(messages->completion, "4");
  EXPECT_EQ(messages->prompt_messages, kQuestion);
}

struct BadRow {
  std::string name, line, message;
};
class MalformedRow : public ::testing::TestWithParam<BadRow> {};

TEST_P(MalformedRow, IsNamedWithFileLineAndWhatWasExpected) {
  EXPECT_THAT(ParseRow(GetParam().line),
              FailsWith(absl::StatusCode::kInvalidArgument, "p.jsonl:3: " + GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedRow,
    ::testing::Values(
        BadRow{"NotJson", "{\"prompt\": ", "not JSON at byte 12; want {\"prompt\""},
        BadRow{"NotAnObject", "[1]", "is array; want"},
        BadRow{"TooDeep", std::string(100000, '['), "nests deeper than 64 levels"},
        BadRow{"NoSides", R"({"prompt": "a"})", "no \"chosen\" and no \"completion\"; want"},
        BadRow{"NoRejected", R"({"prompt": "a", "chosen": "b"})", "no \"rejected\"; want"},
        BadRow{"NoPrompt", R"({"chosen": "a", "rejected": "b"})",
               "no \"prompt\", and the sides are neither messages nor dialogues; want"},
        BadRow{"BlankPrompt", R"({"prompt": " ", "chosen": "a", "rejected": "b"})",
               "the prompt is blank"},
        BadRow{"OneMessageAndNoPrompt",
               R"({"chosen": [{"role": "assistant", "content": "4"}],
                   "rejected": [{"role": "assistant", "content": "5"}]})",
               "no \"prompt\", and no message before the last one"},
        BadRow{"SideIsANumber", R"({"prompt": "a", "chosen": 1, "rejected": "b"})",
               "\"chosen\" is number, not text or a list of messages"},
        BadRow{"NoRole", R"({"chosen": [{"content": "4"}], "rejected": "b"})",
               "message 0 of \"chosen\" is not {\"role\": text, \"content\": text}"},
        BadRow{"ToolCalls",
               R"({"prompt": "a", "chosen": [{"role": "assistant", "content": "4",
                   "tool_calls": [1]}], "rejected": "b"})",
               "message 0 of \"chosen\" has \"tool_calls\", which would not be learned"},
        BadRow{"EndsWithTheUser",
               R"({"chosen": [{"role": "user", "content": "4"}],
                   "rejected": [{"role": "user", "content": "5"}]})",
               "\"chosen\" ends with a message of the user, want one of the assistant"},
        BadRow{"TextAndMessages",
               R"({"prompt": "a", "chosen": "4",
                   "rejected": [{"role": "assistant", "content": "5"}]})",
               "one of \"chosen\" and \"rejected\" is text and the other messages"},
        BadRow{"AnotherPrompt",
               R"({"prompt": "3+3?", "chosen": [{"role": "user", "content": "2+2?"},
                   {"role": "assistant", "content": "4"}],
                   "rejected": [{"role": "user", "content": "2+2?"},
                   {"role": "assistant", "content": "5"}]})",
               "the messages before the last one are not the \"prompt\""},
        BadRow{"OtherPromptMessages",
               R"({"prompt": [{"role": "user", "content": "3+3?"}],
                   "chosen": [{"role": "user", "content": "2+2?"},
                   {"role": "assistant", "content": "4"}],
                   "rejected": [{"role": "user", "content": "2+2?"},
                   {"role": "assistant", "content": "5"}]})",
               "the messages before the last one are not the \"prompt\""},
        BadRow{"MarginIsText",
               R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "inf"})",
               "\"margin\" is \"inf\", want a finite number"},
        BadRow{"OneScore", R"({"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 1})",
               "only one of \"score_chosen\" and \"score_rejected\""},
        BadRow{"NoLabel", R"({"prompt": "a", "completion": "b"})", "no \"label\"; want"},
        BadRow{"LabelIsAWord", R"({"prompt": "a", "completion": "b", "label": "good"})",
               "\"label\" is \"good\", want true, false, 1 or 0"},
        BadRow{"LabelIsTwo", R"({"prompt": "a", "completion": "b", "label": 2})",
               "\"label\" is 2, want true, false, 1 or 0"},
        BadRow{"BothForms", R"({"prompt": "a", "chosen": "b", "rejected": "c", "label": true})",
               "has fields of a pair and of a completion with a label"}),
    [](const auto& info) { return info.param.name; });

TEST(ParsePreferenceRow, SaysWhenThereIsNothingToLearn) {
  const auto unusable = [](const std::string& line, const std::string& message) {
    EXPECT_THAT(ParseRow(line),
                FailsWith(absl::StatusCode::kFailedPrecondition, "p.jsonl:3: " + message));
  };
  unusable(R"({"prompt": "a", "chosen": "b", "rejected": "b"})",
           "\"chosen\" and \"rejected\" are equal");
  unusable(R"({"prompt": "a", "chosen": "b", "rejected": "\n "})", "\"rejected\" is blank");
  unusable(R"({"prompt": "a", "completion": "", "label": 1})", "\"completion\" is blank");
  unusable(
      R"({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: d"})",
      "\"chosen\" and \"rejected\" answer different prompts");
  unusable(R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
               "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                            {"role": "assistant", "content": "c"}]})",
           "\"chosen\" and \"rejected\" answer different prompts");
}

}  // namespace
}  // namespace tandem::trainer
