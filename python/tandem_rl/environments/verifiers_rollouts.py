"""Environments of the package verifiers 0.1.14 (rollouts of others differ). Used by worker.py, which imports this file only where
the run names one.

verifiers drives its rollouts itself and asks a client for each turn of the model. Here each episode runs Environment.rollout as a
task with a client of its own: a request waits for the next turn of our model, and the messages that are new in the request after it
are the answer to the turn. When the rollout has ended, the rubric scores it. Where the trainer allows no further turn, the next
request is answered with OverlongPromptError, with which verifiers ends a rollout that it scores."""
import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from ..rewards.rubric import RubricError, scored
from ..workers.loading import LoadError, find_callee, last_line, place_of
from .episode import Environment, Episode, EpisodeError, Json, Raised, Reply, Turn, file_of
from .observations import metrics_of, reward_of
from .tool_calls import before_calls, checked, read_calls
from .tool_functions import call_id, style_of_tools

try:
    import verifiers as vf
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall
except ImportError as cause:
    raise LoadError("environment.verifiers needs the package verifiers 0.1.14: pip install verifiers==0.1.14, or pip install "
                    f"'tandem-rl[verifiers]', for the interpreter of the environment ({cause})") from None


def _loaded(spec: str, kwargs: dict[str, Any]) -> Any:
    """The environment of an id or of FILE.py:load_environment. Raises LoadError."""
    if ":" in spec:
        value, args, given = find_callee(spec)
        if isinstance(value, vf.Environment) and not kwargs:
            return value
        if not callable(value):
            raise LoadError(f"{spec} is {type(value).__name__}: want a function that returns an environment of verifiers")
    else:
        value, args, given, kwargs = vf.load_environment, [spec], {}, kwargs
    try:
        return value(*(args or []), **{**(given or {}), **kwargs})
    except BaseException as error:
        hint = "" if ":" in spec else f"; `vf-install {spec}` installs an environment"
        place = place_of(error, file_of(value))
        raise LoadError(f"environment.verifiers: {spec} raised {last_line(error)} ({place}){hint}") from error


class VerifiersEnvironment(Environment):
    """Raises LoadError."""

    def __init__(self, spec: str, kwargs: dict[str, Any], chat_template: str) -> None:
        super().__init__()
        self.environment = _loaded(spec, kwargs)
        if not isinstance(self.environment, vf.Environment):
            raise LoadError(f"{spec} gives {type(self.environment).__name__}: want an environment of verifiers (vf.Environment)")
        if getattr(self.environment, "requires_group_rollouts", False):
            raise LoadError(f"{spec}: its rubric scores whole groups, and Tandem ends the episodes of a group one by one: use "
                            "functions about single completions")
        self.file = file_of(type(self.environment))
        self.tools = [{"type": "function", "function": {"name": tool.name, "description": tool.description,
                                                        "parameters": tool.parameters}}
                      for tool in self.environment.tool_defs or []]
        self.style = style_of_tools(chat_template) if self.tools else ""
        self.schemas = {tool["function"]["name"]: tool for tool in self.tools}

    def open(self, row: Json, seed: int) -> Episode:
        return VerifiersEpisode(self, row)

    async def rows(self, count: int, first_seed: int) -> AsyncIterator[Json]:
        """Rows of the environment's own data set."""
        data = await asyncio.to_thread(self.environment.get_dataset)
        if first_seed + count > len(data):
            raise EpisodeError(f"the data set of the environment has {len(data)} rows, and row {first_seed + count - 1} was asked for: "
                               "ask for fewer")
        for i in range(first_seed, first_seed + count):
            row = dict(data[i])
            row["prompt"] = _messages_of(row["prompt"])
            row.setdefault("answer", "")
            row.setdefault("seed", i)
            try:
                yield json.loads(json.dumps(row, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise EpisodeError(f"row {i} of the environment's data set is no JSON: {error}") from None


class _Turns(Client):  # type: ignore[misc]
    """The client of one rollout: `requests` are the messages that verifiers shows the model, `turns` what it said."""

    def __init__(self, environment: VerifiersEnvironment) -> None:
        super().__init__(None)
        self.environment = environment
        self.requests: asyncio.Queue[list[Json]] = asyncio.Queue()
        self.turns: asyncio.Queue[Turn | None] = asyncio.Queue()
        self.names: dict[str, str] = {}  # of the tools, by the ids of their calls
        self.is_over = False  # the last turn was said

    def setup_client(self, config: Any) -> None:
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[list[Json], dict[str, Any]]:
        return _messages_of(messages), {}

    async def get_native_response(self, prompt: list[Json], model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Turn:
        if self.is_over:
            raise vf.OverlongPromptError("no further turn can follow")
        self.requests.put_nowait(prompt)
        turn = await self.turns.get()
        if turn is None:
            raise vf.OverlongPromptError("what the environment said does not fit")
        self.is_over = turn.is_last
        return turn

    async def raise_from_native_response(self, response: Turn) -> None:
        pass

    async def from_native_response(self, turn: Turn) -> Any:
        content, calls = turn.text, []
        found = read_calls(turn.text, self.environment.style) if self.environment.tools else []
        if found:
            content = before_calls(turn.text, self.environment.style)
        for call in found:
            typed = checked(call, self.environment.schemas, self.environment.style)
            number = call_id(len(self.names))
            self.names[number] = call.name or "unknown"
            # What is malformed is for the environment to answer: it sees arguments that are no JSON.
            calls.append(ToolCall(id=number, name=self.names[number],
                                  arguments=call.error or json.dumps(call.arguments if typed.error else typed.arguments)))
        is_cut = turn.finish_reason == "length"
        message = ResponseMessage(content=content, tool_calls=calls or None, is_truncated=is_cut,
                                  finish_reason="length" if is_cut else "tool_calls" if calls else "stop")
        return Response(id="tandem", created=0, model="tandem", message=message)

    async def close(self) -> None:
        pass


def _content_of(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    if any(part.get("type") != "text" for part in parts):
        raise EpisodeError("the environment shows the model what is no text, and the models of Tandem read text alone")
    return "".join(part["text"] for part in parts)


def _messages_of(messages: Any) -> list[Json]:
    """Messages of verifiers, or of a row, as {"role", "content"}, a tool's with the id of its call."""
    read: list[Json] = []
    for message in [{"role": "text", "content": messages}] if isinstance(messages, str) else messages:
        one: Json = {"role": message["role"], "content": _content_of(message["content"])}
        if message.get("tool_call_id"):
            one["tool_call_id"] = message.get("tool_call_id")
        read.append(one)
    return read


class VerifiersEpisode(Episode):
    def __init__(self, environment: VerifiersEnvironment, row: Json) -> None:
        self.environment = environment
        self.row = row
        self.client = _Turns(environment)
        self.shown: list[Json] = []  # the messages of the last request
        self.rollout: asyncio.Task[Any] | None = None

    async def reset(self) -> list[Json]:
        """Starts the rollout. Its first request has the prompt of the data, so that there is no first observation."""
        if not self.row.get("prompt"):
            raise EpisodeError("the row has no prompt: write the data of this environment with `tandem environment ... --write-prompts "
                               "FILE`")
        given = {"example_id": 0, "answer": "", "info": {},
                 **{key: value for key, value in self.row.items() if value is not None}}
        self.rollout = asyncio.create_task(self.environment.environment.rollout(given, self.client, "tandem", {}))
        request = await self._next_request()
        if request is None:
            self._check_state(self.rollout.result())
            raise EpisodeError("the rollout of the environment ended before the first turn of the model")
        if request != _messages_of(self.row["prompt"]):
            raise EpisodeError(f"the environment asks with {json.dumps(request)[:200]}, and the prompt of the row is "
                               f"{json.dumps(self.row['prompt'])[:200]}: write the data of this environment with `tandem environment "
                               "... --write-prompts FILE`")
        self.shown = request
        return []

    async def finish(self) -> Reply:
        """verifiers scores a rollout whose next prompt is too long."""
        assert self.rollout is not None
        self.client.turns.put_nowait(None)
        if await self._next_request() is not None:
            raise EpisodeError("the environment asks for a further turn, and no tokens are left for it")
        return await self._end(self.rollout.result())

    async def step(self, turn: Turn) -> Reply:
        assert self.rollout is not None
        self.client.turns.put_nowait(turn)
        request = await self._next_request()
        if request is None:
            return await self._end(self.rollout.result())
        said = len(self.shown)
        if request[:said] != self.shown or len(request) <= said or request[said]["role"] != "assistant":
            raise EpisodeError("the environment changed the messages before the last turn of the model: Tandem goes on from what was "
                               "sampled, and cannot rewrite it")
        self.shown = request
        messages = [dict(message) for message in request[said + 1:]]
        for message in messages:
            if message.get("tool_call_id") in self.client.names:
                message["name"] = self.client.names[message["tool_call_id"]]
        if not messages:
            raise EpisodeError("the environment asks for another turn and says nothing to the one before")
        return Reply(messages)

    async def _next_request(self) -> list[Json] | None:
        """What verifiers asks next, or None when the rollout has ended. Raises Raised."""
        assert self.rollout is not None
        request = asyncio.ensure_future(self.client.requests.get())
        try:
            await asyncio.wait({request, self.rollout}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
        finally:
            request.cancel()
        error = self.rollout.exception()
        if error is not None:
            raise Raised(error)
        return None

    def _check_state(self, state: Any) -> None:
        error = state.get("error")
        while error is not None and error.__cause__ is not None:
            if isinstance(error, EpisodeError):
                break
            error = error.__cause__
        if isinstance(error, EpisodeError):
            raise error
        if error is not None:
            raise Raised(error)

    async def _end(self, state: Any) -> Reply:
        self._check_state(state)
        environment = self.environment.environment
        if not getattr(environment, "score_rollouts", True):
            return Reply([], None, True)
        try:
            await scored(environment.rubric.score_rollout(state))
            await environment.rubric.cleanup(state)
        except RubricError as error:
            raise EpisodeError(str(error)) from None
        except Exception as error:
            raise Raised(error) from error
        return Reply([], reward_of(state["reward"], "the reward of the rubric"), True, metrics_of(state["metrics"]))

    async def close(self) -> None:
        if self.rollout is not None and not self.rollout.done():
            self.rollout.cancel()
            await asyncio.wait({self.rollout})
