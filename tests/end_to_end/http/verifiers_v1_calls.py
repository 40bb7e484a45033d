"""A taskset and a harness of verifiers 0.4 with a tool, for renderers_test.py: sums that are to be added with the tool, as the turns of
the prompt show, and an agent that plays the calls which verifiers reads from the ids."""
import json

import openai
import tool_prompt
import verifiers.v1 as vf

TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


MESSAGES = {"user": vf.UserMessage, "assistant": vf.AssistantMessage, "tool": vf.ToolMessage}


class CallTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.assistant_messages[-1].content == "It is 4.")


class CallsTaskset(vf.Taskset[CallTask, vf.TasksetConfig]):
    def load(self):
        prompt = [MESSAGES[one["role"]](**{key: value for key, value in one.items() if key != "role"}) for one in tool_prompt.MESSAGES]
        return [CallTask(vf.TaskData(idx=0, prompt=prompt), self.config.task)]


class CallingHarness(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False
    SUPPORTS_MESSAGE_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_prompt(data)
        messages = [one.model_dump(exclude_none=True) for one in prompt]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for _ in range(3):
                answer = (await client.chat.completions.create(model=ctx.model, messages=messages, tools=[TOOL])).choices[0].message
                messages.append(answer.model_dump(exclude_none=True))
                if not answer.tool_calls:
                    break
                for one in answer.tool_calls:
                    arguments = json.loads(one.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": one.id, "content": str(arguments["a"] + arguments["b"])})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["CallsTaskset", "CallingHarness"]
