// Tool calls in the text of a chat completion, in the form that the chat templates of Hermes,
// Qwen2.5, Qwen3 and SmolLM3 teach: <tool_call>{"name": .., "arguments": {..}}</tool_call>. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::rollout {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as OpenAI's API has it: in a text
};

// A turn of the model: what it says, and the calls after that.
struct CallingTurn {
  std::string content;
  std::vector<ToolCall> calls;
};

// Without a call, and where one of them is no JSON object with a name and arguments, the whole text
// is the content. What stands in <think>..</think> is no call. The last end tag may be missing.
CallingTurn ReadToolCalls(std::string_view text);

// HeldCalls: the same for a text that comes piece by piece. Thread-compatible.
class HeldCalls {
 public:
  // Returns what is certain to belong to the content: nothing from where a call may have begun.
  std::string Add(std::string_view more);

  // At the end: the rest of the content, and the calls.
  CallingTurn Finish() const;

 private:
  std::string text_;
  size_t given_ = 0;  // bytes of text_
};

}  // namespace tandem::rollout
