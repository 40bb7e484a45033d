#include "rollout_server/http/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tandem::rollout {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

auto Call(const std::string& name, const std::string& arguments) {
  return ::testing::AllOf(Field(&ToolCall::name, name), Field(&ToolCall::arguments, arguments));
}

TEST(ReadToolCalls, CallsAreReadInTheirOrderAndTheContentIsWhatStandsBeforeThem) {
  const CallingTurn turn = ReadToolCalls(
      "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": [1.5, "
      "\"x\"]}}\n</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>");
  EXPECT_EQ(turn.content, "Let me see.\n");
  EXPECT_THAT(turn.calls, ElementsAre(Call("add", R"({"a":2,"b":[1.5,"x"]})"), Call("now", "{}")));
}

TEST(ReadToolCalls, ArgumentsMayBeATextOrBeCalledParametersAndTheLastEndTagMayBeMissing) {
  EXPECT_THAT(
      ReadToolCalls(R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)").calls,
      ElementsAre(Call("f", R"({"a":1})")));
  EXPECT_THAT(ReadToolCalls(R"(<tool_call>{"name": "f", "parameters": {"a": 1}})").calls,
              ElementsAre(Call("f", R"({"a":1})")));
}

TEST(ReadToolCalls, WhatIsNoCallStaysText) {
  for (const std::string text :
       {"No call.", "<tool_call>", "<tool_call>{\"name\": \"f\"", "<tool_call>add(2)</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>", "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{</tool_call>",
        "<tool_call><function=f></function></tool_call>"}) {
    const CallingTurn turn = ReadToolCalls(text);
    EXPECT_EQ(turn.content, text);
    EXPECT_THAT(turn.calls, IsEmpty()) << text;
  }
  const std::string deep =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(5000, '[') +
      std::string(5000, ']') + "}}</tool_call>";
  EXPECT_THAT(ReadToolCalls(deep).calls, IsEmpty());
}

TEST(ReadToolCalls, WhatIsThoughtIsNoCall) {
  const std::string thought = "<think><tool_call>{\"name\": \"f\"}</tool_call></think>";
  EXPECT_THAT(ReadToolCalls(thought).calls, IsEmpty());
  const CallingTurn turn = ReadToolCalls(thought + "Now.<tool_call>{\"name\": \"g\"}</tool_call>");
  EXPECT_EQ(turn.content, thought + "Now.");
  EXPECT_THAT(turn.calls, ElementsAre(Call("g", "{}")));
}

// However a text comes, the pieces and the rest add up to the content of the whole.
TEST(HeldCalls, PiecesAddUpToTheContentWhateverTheyAre) {
  for (const std::string text :
       {"a < b <tool", "Now <tool_call>{\"name\": \"f\"}</tool_call>", "<<tool_call>{}",
        "<think><tool_call>x</think>y<tool_call>{\"name\": \"f\"}</tool_call>", ""}) {
    const CallingTurn whole = ReadToolCalls(text);
    for (size_t size = 1; size <= 12; ++size) {
      HeldCalls held;
      std::string content;
      for (size_t at = 0; at < text.size(); at += size) content += held.Add(text.substr(at, size));
      const CallingTurn end = held.Finish();
      EXPECT_EQ(content + end.content, whole.content) << text << " by " << size;
      EXPECT_EQ(end.calls.size(), whole.calls.size()) << text;
    }
  }
}

TEST(HeldCalls, TextIsGivenAtOnceUpToWhereACallMayBegin) {
  HeldCalls held;
  EXPECT_EQ(held.Add("one <to"), "one ");
  EXPECT_EQ(held.Add("p> two"), "<top> two");
  EXPECT_EQ(held.Add("<tool_call>{\"name\""), "");
  EXPECT_EQ(held.Add(": \"f\"}"), "");
  EXPECT_THAT(held.Finish().calls, ElementsAre(Call("f", "{}")));
}

}  // namespace
}  // namespace tandem::rollout
