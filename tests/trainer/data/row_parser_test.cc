#include "trainer/data/row_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

absl::StatusOr<PromptRow> Parse(const std::string& line, const DataOptions& options = {},
                                bool needs_answer = true) {
  auto parser = RowParser::Create(options, needs_answer);
  if (!parser.ok()) return parser.status();
  return parser->Parse(line, "p.jsonl:3");
}

absl::Status Fails(const std::string& line, const DataOptions& options = {}) {
  return Parse(line, options).status();
}

TEST(ParsePromptRow, ReadsEveryForm) {
  auto row = Parse(R"({"prompt": "2+2?", "answer": 4})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->text, "2+2?");
  EXPECT_EQ(row->answer, "4");

  row = Parse(R"({"messages": [{"role": "user", "content": "hi"}], "answer": "x"})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->messages_json, R"([{"role":"user","content":"hi"}])");

  row = Parse(R"({"question": "how many?", "answer": "so\n#### 7"})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->text, "how many?");
  EXPECT_EQ(row->answer, "so\n#### 7");

  row = Parse(R"({"data_source": "gsm8k", "prompt": [{"role": "user", "content": "hi"}],
                  "reward_model": {"style": "rule", "ground_truth": "72"}})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->answer, "72");
  EXPECT_TRUE(row->text.empty());
}

struct BadLine {
  std::string name, line, message;
};
class MalformedLine : public ::testing::TestWithParam<BadLine> {};

TEST_P(MalformedLine, IsNamedWithFileLineAndWhatWasExpected) {
  EXPECT_THAT(Parse(GetParam().line),
              FailsWith(absl::StatusCode::kInvalidArgument, "p.jsonl:3: " + GetParam().message));
  EXPECT_THAT(std::string(Parse(GetParam().line).status().message()),
              HasSubstr("want {\"prompt\""));
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedLine,
    ::testing::Values(
        BadLine{"NotJson", "{\"prompt\": ", "not JSON"}, BadLine{"NotAnObject", "[1]", "is array"},
        BadLine{"NoAnswer", R"({"prompt": "a"})", "no \"answer\""},
        BadLine{"AnswerIsAList", R"({"prompt": "a", "answer": [1]})", "the answer is array"},
        BadLine{"NoPrompt", R"({"answer": "1"})", "no \"prompt\""},
        BadLine{"PromptNearlyNamed", R"({"promt": "a", "answer": "1"})",
                "no \"prompt\", \"messages\" or \"question\"; the columns are promt, answer; if "
                "\"promt\" is the one, set data.columns: {prompt: promt}"},
        BadLine{"AnswerNearlyNamed", R"({"prompt": "a", "answr": "1"})",
                "no \"answer\" and no \"reward_model\": {\"ground_truth\": ..}; the columns are "
                "prompt, answr; if \"answr\" is the one, set data.columns: {answer: answr}"},
        BadLine{"EmptyPrompt", R"({"prompt": "", "answer": "1"})", "\"prompt\" is neither"},
        BadLine{"BadMessage", R"({"messages": [{"role": "user"}], "answer": "1"})",
                "\"messages\" is neither"},
        BadLine{"DeepJunk", std::string(100000, '['), "not JSON"}),
    [](const auto& info) { return info.param.name; });

// One row of each, cut from the sources that row_layout.h names.
struct Sample {
  std::string name;
  DataFormat format;
  std::string line, prompt, answer;
};
class LayoutOf : public ::testing::TestWithParam<Sample> {};

TEST_P(LayoutOf, IsReadByNameAndRecognised) {
  for (const DataFormat format : {GetParam().format, DataFormat::kAuto}) {
    const auto row = Parse(GetParam().line, {.format = format});
    ASSERT_THAT(row, IsOk());
    EXPECT_EQ(row->text.empty() ? row->messages_json : row->text, GetParam().prompt);
    EXPECT_EQ(row->answer, GetParam().answer);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, LayoutOf,
    ::testing::Values(
        Sample{"Verl", DataFormat::kVerl,
               R"({"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "q"}],
                   "ability": "math", "reward_model": {"ground_truth": "72", "style": "rule"},
                   "extra_info": {"answer": "so", "index": 0}})",
               R"([{"role":"user","content":"q"}])", "72"},
        Sample{"Trl", DataFormat::kTrl,
               R"({"prompt": [{"role": "user", "content": "q"}], "solution": "\\boxed{3}"})",
               R"([{"role":"user","content":"q"}])", "\\boxed{3}"},
        Sample{"PrimeRl", DataFormat::kPrimeRl,
               R"({"question": "q", "answer": "a", "info": {"x": 1}, "task": "t"})", "q", "a"},
        Sample{"OpenRlhf", DataFormat::kOpenRlhf,
               R"({"input": "q", "label": "a", "datasource": "math"})", "q", "a"},
        Sample{"NemoRl", DataFormat::kNemoRl, R"({"input": "q", "output": "a"})", "q", "a"},
        Sample{"Math", DataFormat::kMath,
               R"({"problem": "q", "level": "Level 5", "solution": "so \\boxed{2}"})", "q",
               "so \\boxed{2}"},
        Sample{"MathAnswer", DataFormat::kMath,
               R"({"problem": "q", "solution": "long", "answer": "2"})", "q", "2"},
        Sample{"Messages", DataFormat::kMessages,
               R"({"messages": [{"role": "user", "content": "q"},
                                {"role": "assistant", "content": "a"}]})",
               R"([{"role":"user","content":"q"}])", "a"}),
    [](const auto& info) { return info.param.name; });

TEST(RowParser, LabelsOfPreferencesAreNoAnswers) {
  EXPECT_THAT(Fails(R"({"prompt": "q", "completion": "c", "label": true})"),
              FailsWith(absl::StatusCode::kInvalidArgument, "no \"answer\""));
}

TEST(RowParser, ANamedColumnIsReadAndMayBeNested) {
  const DataOptions options = {.columns = {{"prompt", "q"}, {"answer", "info.gold"}}};
  const auto row = Parse(R"({"q": "two?", "prompt": "no", "info": {"gold": 2}})", options);
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->text, "two?");
  EXPECT_EQ(row->answer, "2");
  EXPECT_EQ(row->answer_column, "info.gold");
  EXPECT_EQ(Parse(R"({"q": "a", "info.gold": "b", "info": {"gold": "c"}})", options)->answer, "b");
}

TEST(RowParser, AWrongColumnIsNamedWithThoseThatThereAre) {
  const std::string line = R"({"question": "q", "info": {"gold": 2}})";
  EXPECT_THAT(Fails(line, {.columns = {{"prompt", "qustion"}}}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "p.jsonl:3: no column \"qustion\"; the columns are question, info; did you "
                        "mean \"question\"? (data.columns.prompt)"));
  EXPECT_THAT(Fails(line, {.columns = {{"answer", "info.gol"}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "did you mean \"info.gold\"?"));
  EXPECT_THAT(Fails(line, {.format = DataFormat::kVerl}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "no column \"prompt\"; the columns are question, info (data.format verl)"));
  EXPECT_THAT(Fails(R"({"question": "q", "answer": null})", {.format = DataFormat::kGsm8k}),
              FailsWith(absl::StatusCode::kInvalidArgument, "\"answer\" is null"));
  EXPECT_THAT(Fails("{}", {.columns = {{"promt", "q"}}}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "data.columns: no 'promt'; want prompt, answer, system_prompt, tools; did "
                        "you mean 'prompt'?"));
}

TEST(RowParser, AnEmptyNameOfTheAnswerMeansThatThereIsNone) {
  const auto row = Parse(R"({"prompt": "q", "answer": "a"})", {.columns = {{"answer", ""}}});
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->answer, "");
}

TEST(RowParser, WithoutNeedOfAnswersTheirLackIsTold) {
  const auto row = Parse(R"({"prompt": "q", "answer": null})", {}, /*needs_answer=*/false);
  ASSERT_THAT(row, IsOk());
  EXPECT_FALSE(row->has_answer);
}

TEST(RowParser, ATemplateIsFilledOnce) {
  const DataOptions options = {.text_template = "{{{question}}}: {n} {list}", .suffix = " ="};
  const auto row =
      Parse(R"({"question": "{n}", "n": 2.50, "list": ["a", 1], "answer": 1})", options);
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->text, "{{n}}: 2.5 [\"a\",1] =");
  EXPECT_THAT(Fails(R"({"answer": 1, "n": 1})", options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "p.jsonl:3: no column \"question\"; the columns are answer, n "
                        "(data.template)"));
}

TEST(RowParser, ATemplateThatGivesNothingIsRefused) {
  EXPECT_THAT(
      Fails(R"({"q": "", "answer": 1})", {.text_template = "{q}"}),
      FailsWith(absl::StatusCode::kInvalidArgument, "p.jsonl:3: data.template gives an empty"));
}

TEST(RowParser, ATemplateThatCannotBeReadIsRefused) {
  EXPECT_THAT(Fails("{}", {.text_template = "a {b"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "the brace at byte 2"));
  EXPECT_THAT(Fails("{}", {.text_template = "\\boxed{}"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "a brace itself is written {{ or }}"));
  EXPECT_THAT(Fails("{}", {.text_template = "a } b"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "the brace at byte 2"));
  EXPECT_THAT(Fails("{}", {.text_template = "all {{the}} same"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "every prompt would be the same"));
}

TEST(RowParser, ASystemPromptGoesBeforeMessagesThatHaveNone) {
  const DataOptions options = {.system_prompt = "Be brief."};
  EXPECT_EQ(Parse(R"({"prompt": "q", "answer": 1})", options)->messages_json,
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"q"}])");
  EXPECT_EQ(Parse(R"({"messages": [{"role": "system", "content": "Own."},
                                   {"role": "user", "content": "q"}], "answer": 1})",
                  options)
                ->messages_json,
            R"([{"role":"system","content":"Own."},{"role":"user","content":"q"}])");
  const DataOptions column = {.columns = {{"system_prompt", "sys"}}, .system_prompt = "Be brief."};
  EXPECT_THAT(Parse(R"({"prompt": "q", "answer": 1, "sys": "Own."})", column)->messages_json,
              HasSubstr("Own."));
  EXPECT_THAT(Parse(R"({"prompt": "q", "answer": 1, "sys": null})", column)->messages_json,
              HasSubstr("Be brief."));
  EXPECT_THAT(Fails("{}", {.system_prompt = "x", .chat = false}),
              FailsWith(absl::StatusCode::kInvalidArgument, "set data.chat to true"));
}

TEST(RowParser, ToolsComeFromTheRowOrTheFile) {
  TempDir directory;
  ASSERT_THAT(WriteFileAtomically(directory / "tools.json", R"([{"name": "z", "args": {}}])"),
              IsOk());
  const DataOptions options = {.tools_file = directory / "tools.json"};
  EXPECT_EQ(Parse(R"({"prompt": "q", "answer": 1})", options)->tools_json,
            R"([{"name":"z","args":{}}])");
  EXPECT_EQ(
      Parse(R"({"prompt": "q", "answer": 1, "tools": [{"b": 1, "a": null}]})", options)->tools_json,
      R"([{"b":1}])");
  EXPECT_EQ(Parse(R"({"prompt": "q", "answer": 1, "tools": "[{\"b\": 1}]"})", options)->tools_json,
            R"([{"b":1}])");
  EXPECT_EQ(Parse(R"({"prompt": "q", "answer": 1, "tools": ["hammer"]})")->tools_json, "")
      << "a column of that name may be anything, unless it is named";
  EXPECT_THAT(
      Fails(R"({"prompt": "q", "answer": 1, "t": ["x"]})", {.columns = {{"tools", "t"}}}),
      FailsWith(absl::StatusCode::kInvalidArgument, "\"t\" (data.columns.tools) is no list"));
  ASSERT_THAT(WriteFileAtomically(directory / "tools.json", "{}"), IsOk());
  EXPECT_THAT(Fails("{}", options),
              FailsWith(absl::StatusCode::kInvalidArgument, "tools.json: want a JSON array"));
}

TEST(RowParser, NullsThatTablesFillInAreLeftOut) {
  EXPECT_EQ(Parse(R"({"messages": [{"role": "user", "content": "q", "tool_calls": null}],
                      "answer": 1, "prompt": null})")
                ->messages_json,
            R"([{"role":"user","content":"q"}])");
}

TEST(RowParser, AMessageOfToolCallsNeedsNoText) {
  const auto row = Parse(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]},
      {"role": "tool", "content": "3"}], "answer": 1})");
  ASSERT_THAT(row, IsOk());
  EXPECT_THAT(row->messages_json, HasSubstr("tool_calls"));
}

TEST(RowParser, ATextAndOneMessageOfTheUserAreTheSamePrompt) {
  const auto text = Parse(R"({"prompt": "q", "answer": 1})", {.suffix = " x"});
  const auto messages = Parse(R"({"messages": [{"content": "q", "role": "user"}], "answer": 2})",
                              {.system_prompt = "s"});
  EXPECT_EQ(text->identity, messages->identity);
  EXPECT_NE(text->identity, Parse(R"({"prompt": "r", "answer": 1})")->identity);
}

}  // namespace
}  // namespace tandem::trainer
