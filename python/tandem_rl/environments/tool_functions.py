"""Functions of users as tools of the model. Used by worker.py, and by python_objects.py for environments as TRL's.

A tool is a function with hints of types and a docstring in Google's style. The model calls it in the form that its chat template
shows (tool_calls.py); what it returns is answered as a message of the role tool, text as it is and anything else as JSON. A call
that is malformed, and a tool that raises, are answered with a message that says why, so that the model can do better. A turn
without a call ends the episode. There is no reward: the reward functions of the run judge the completion."""
import asyncio
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..workers.loading import LoadError, find, kind_of, last_line
from .episode import CallsOfUser, Environment, Episode, Json, Raised, Reply, Turn, file_of
from .tool_calls import Call, checked, read_calls, style_of, unread_form
from .tool_schemas import SchemaError, enums_of, schema_of


@dataclass
class Tool:
    name: str
    call: Callable[..., Any]
    schema: Json
    enums: dict[str, type[enum.Enum]]  # of its arguments

    def arguments(self, written: Json) -> Json:
        """Those that the model wrote, with members of an Enum for their values."""
        return {name: self.enums[name](value) if name in self.enums and value is not None else value
                for name, value in written.items()}


def tool_of(value: Any, spec: str) -> Tool:
    """Raises LoadError if it cannot be a tool."""
    if not callable(value) or isinstance(value, type):
        raise LoadError(f"{spec} is {kind_of(value)}, want a function with hints of types and a docstring")
    try:
        schema = schema_of(value)
    except SchemaError as error:
        raise LoadError(f"{spec} cannot be a tool: {error}") from None
    return Tool(schema["function"]["name"], value, schema, enums_of(value))


def style_of_tools(chat_template: str) -> str:
    """The form in which the model calls tools; raises LoadError if its template teaches one that is not read."""
    unread = unread_form(chat_template)
    if unread:
        raise LoadError(f"the chat template teaches tool calls with {unread}, a form that Tandem does not read: it reads those of "
                        "Hermes, Qwen, Llama 3, Mistral, GLM and SmolLM3; give the model another chat template, or read the calls in step of a "
                        "class (environment.python)")
    return style_of(chat_template)


def _text_of(result: Any) -> str:
    try:
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    except (TypeError, ValueError):  # keys that are no text, an object that holds itself
        return str(result)


def call_id(number: int) -> str:
    """Nine digits, as Mistral's templates want the ids of calls."""
    return f"{number:09d}"


def _message(call: Call, number: int, content: str) -> Json:
    return {"role": "tool", "name": call.name or "unknown", "tool_call_id": call_id(number), "content": content}


class ToolTurns:
    """Answers the calls in turns of one episode."""

    def __init__(self, tools: list[Tool], style: str, calls: CallsOfUser) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.schemas = {tool.name: tool.schema for tool in tools}
        self.style = style
        self.calls = calls
        self.answered = self.failed = self.malformed = 0  # calls, from the first turn on

    async def answer(self, text: str) -> Reply:
        """The answers in the order of the calls, which run beside each other if they are coroutines. Done where there is none."""
        calls = [checked(call, self.schemas, self.style) for call in read_calls(text, self.style)]
        answers = await asyncio.gather(*(self._answer(call, self.answered + i) for i, call in enumerate(calls)))
        self.answered += len(calls)
        self.malformed += sum(bool(call.error) for call in calls)
        self.failed += sum(not worked for _, worked in answers)
        return Reply([message for message, _ in answers], None, not calls,
                     {"tool_calls": float(self.answered), "tool_errors": float(self.failed),
                      "malformed_calls": float(self.malformed)})

    async def _answer(self, call: Call, number: int) -> tuple[Json, bool]:
        """The message, and False if the tool raised."""
        if call.error:
            return _message(call, number, f"Error: {call.error}"), True
        tool = self.tools[call.name]
        try:
            result = await self.calls.call(tool.call, **tool.arguments(call.arguments))
        except Raised as raised:
            return _message(call, number, f"Error: {last_line(raised.error)}"), False
        return _message(call, number, _text_of(result)), True


class ToolEnvironment(Environment):
    """Raises LoadError."""

    def __init__(self, specs: list[str], kwargs: dict[str, Any], chat_template: str) -> None:
        super().__init__()
        if kwargs:
            raise LoadError(f"environment.kwargs: tools take none ({', '.join(kwargs)}): name a function that makes the tool, as "
                            "FILE.py:make_tool(size=3)")
        self.functions: list[Tool] = []
        for spec in specs:
            tool = tool_of(find(spec), spec)
            if any(other.name == tool.name for other in self.functions):
                raise LoadError(f"{spec}: there are two tools called {tool.name}: rename one of the functions")
            self.functions.append(tool)
        if not self.functions:
            raise LoadError("environment.tools names no function")
        self.file = file_of(self.functions[0].call)
        self.style = style_of_tools(chat_template)
        self.tools = [tool.schema for tool in self.functions]

    def open(self, row: Json, seed: int) -> Episode:
        return ToolEpisode(self)


class ToolEpisode(Episode):
    keeps_state = False

    def __init__(self, environment: ToolEnvironment) -> None:
        self.calls = CallsOfUser()
        self.turns = ToolTurns(environment.functions, environment.style, self.calls)

    async def reset(self) -> list[Json]:
        return []

    async def step(self, turn: Turn) -> Reply:
        return await self.turns.answer(turn.text)

    async def close(self) -> None:
        self.calls.end()
