"""Environments that users write in Python. Used by worker.py.

    class GuessTheNumber:
        def __init__(self, highest=100): ...      # environment.kwargs, by name; each episode has an object of its own
        def reset(self, seed, row): ...           # any of seed, row and the columns of the row, by name (**kwargs: all columns and
                                                  # seed); returns None or the first observation, which the prompt has to show
        def step(self, text):                     # a turn of the model
            return observation, reward, done
        def close(self): ...                      # may be missing

All may be `async def`; what is not is called in a thread of the episode, so it may wait. An observation is text (a message of the
role user), a message {"role", "content"}, a list of messages, or None where the episode is done. A reward is a number or None.
step may also return Gymnasium's (observation, reward, terminated, truncated, info) or a dict with "observation" (or "messages"),
"reward", "done" and "info"; the numbers of info become metrics. reset may return Gymnasium's (observation, info). Instead of a
class, a function that returns such an object will do. The same seed, row and turns must give the same observations: an episode
whose process ended is played again.

A class as TRL's environment_factory takes it runs too: reset(**kwargs), no step, get_reward(), and every other public method is
a tool of the model. The reward is what get_reward returns when the model calls no tool, or has its last turn."""
import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..workers.loading import LoadError, find_callee, kind_of
from .episode import CallsOfUser, Environment, Episode, EpisodeError, Json, Reply, Turn, file_of
from .observations import messages_of, reply_of, reward_of
from .tool_functions import ToolTurns, style_of_tools, tool_of

WANT = ("want a class with reset and step(text), or, as for TRL's environment_factory, with reset and get_reward; or a function that "
        "returns an object of such a class")


def _parameters(call: Callable[..., Any], spec: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        raise LoadError(f"{spec} has no signature that Python can tell: wrap it in a function of Python") from None


def _constructor(spec: str, value: Any, args: list[Any], given: dict[str, Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """What makes an object of the environment; raises LoadError if its arguments are not those it takes."""
    parameters = _parameters(value, spec)
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for key in kwargs:
        if key not in named and not takes_all:
            raise LoadError(f"environment.kwargs: {spec} does not take {key}; it takes {', '.join(named) or 'nothing'}")
    try:
        inspect.signature(value).bind(*args, **{**given, **kwargs})
    except TypeError as error:
        raise LoadError(f"{spec}: {error}: name it in environment.kwargs, or give it a default") from None
    return functools.partial(value, *args, **{**given, **kwargs})


def _is_trl(value: Any) -> bool:
    return not hasattr(value, "step") and callable(getattr(value, "get_reward", None))


def _check_methods(value: Any, what: str, error: type[LoadError] | type[EpisodeError]) -> None:
    if _is_trl(value):
        if not callable(getattr(value, "reset", None)):
            raise error(f"{what} has get_reward, as an environment of TRL, and no reset(**kwargs)")
        return
    for name in ("reset", "step"):
        if not callable(getattr(value, name, None)):
            raise error(f"{what} has no {name}: {WANT}")
    step: Any = value.step
    before = [None] if inspect.isclass(value) and inspect.isfunction(step) else []  # self
    try:
        inspect.signature(step).bind(*before, "text")
    except TypeError:
        raise error(f"{what} has step{inspect.signature(step)}: want step(self, text)") from None


def _tool_names(kind: type) -> list[str]:
    """The methods that TRL makes tools of (GRPOTrainer.__init__), and not close, which we call."""
    return [name for name, _ in inspect.getmembers(kind, predicate=inspect.isfunction)
            if not name.startswith("_") and name not in ("reset", "get_reward", "close")]


class PythonEnvironment(Environment):
    """FILE.py:NAME or MODULE:NAME, a class or a function that returns an object. Raises LoadError."""

    def __init__(self, spec: str, kwargs: dict[str, Any], chat_template: str) -> None:
        super().__init__()
        value, args, given = find_callee(spec)
        if not inspect.isclass(value) and callable(getattr(value, "step", None)):
            raise LoadError(f"{spec} is an object: name its class {type(value).__name__}, because each episode has an object of "
                            "its own")
        if not callable(value):
            raise LoadError(f"{spec} is {kind_of(value)}: {WANT}")
        if inspect.isclass(value):
            _check_methods(value, spec, LoadError)
        self.spec = spec
        self.file = file_of(value)
        self.make = _constructor(spec, value, args or [], given or {}, kwargs)
        self.chat_template = chat_template
        self.reset: Callable[..., Any] | None = None  # of the class, without self
        if inspect.isclass(value):
            reset: Any = getattr(value, "reset")  # noqa: B009  it was checked
            self.reset = functools.partial(reset, None) if inspect.isfunction(reset) else reset
        if inspect.isclass(value) and _is_trl(value):
            style_of_tools(chat_template)
            self.tools = [tool_of(getattr(value, name), f"{spec}.{name}").schema for name in _tool_names(value)]

    def check_row(self, row: Json) -> None:
        """Raises LoadError if reset needs what a row of the data does not have. Nothing is known of a function's objects."""
        if self.reset is None:
            return
        missing = _missing_of_reset(self.reset, row)
        if missing:
            raise LoadError(f"{self.spec}: {_needs(missing, 'reset', row)}")

    def open(self, row: Json, seed: int) -> Episode:
        return PythonEpisode(self, row, seed)


def _missing_of_reset(reset: Callable[..., Any], row: Json) -> str:
    """The first argument that reset needs and does not get; empty: none."""
    given = {*row, "seed", "row"}
    for p in inspect.signature(reset).parameters.values():
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is p.empty and p.name not in given:
            return p.name
    return ""


def _needs(missing: str, what: str, row: Json) -> str:
    return (f"{what} needs the argument {missing}, and gets seed, row and the columns of the row ({', '.join(row) or 'none'}): add "
            "the column to the data, or give the argument a default")


class PythonEpisode(Episode):
    def __init__(self, environment: PythonEnvironment, row: Json, seed: int) -> None:
        self.environment = environment
        self.row = row
        self.seed = seed
        self.calls = CallsOfUser()
        self.object: Any = None
        self.tools: ToolTurns | None = None  # of an environment as TRL's

    async def reset(self) -> list[Json]:
        made = await self.calls.call(self.environment.make)
        name = type(made).__name__
        if inspect.isclass(made):
            raise EpisodeError(f"{self.environment.spec} returned the class {made.__name__}: name the class itself, or return an "
                               "object of it")
        _check_methods(made, f"{self.environment.spec} returned {kind_of(made)}, which", EpisodeError)
        self.object = made
        if _is_trl(made):
            tools = [tool_of(getattr(made, tool), f"{name}.{tool}") for tool in _tool_names(type(made))]
            self.tools = ToolTurns(tools, style_of_tools(self.environment.chat_template), self.calls)
        returned = await self.calls.call(made.reset, **self._arguments_of_reset(made.reset, name))
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict) and "role" not in returned[1]:
            returned = returned[0]  # Gymnasium's (observation, info)
        return messages_of(returned, f"the first observation, which {name}.reset returned,")

    def _arguments_of_reset(self, reset: Callable[..., Any], name: str) -> dict[str, Any]:
        given = {**self.row, "seed": self.seed, "row": self.row}
        parameters = inspect.signature(reset).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        missing = _missing_of_reset(reset, self.row)
        if missing:
            raise EpisodeError(_needs(missing, f"{name}.reset", self.row))
        return {key: value for key, value in given.items() if key in named or (takes_all and key not in ("row", "self"))}

    async def step(self, turn: Turn) -> Reply:
        name = f"{type(self.object).__name__}.step"
        if self.tools is None:
            return reply_of(await self.calls.call(self.object.step, turn.text), name)
        reply = await self.tools.answer(turn.text)
        if reply.done or turn.is_last:
            reply.reward = await self._reward()
            reply.done = True
        return reply

    async def finish(self) -> Reply:
        return Reply([], None if self.tools is None else await self._reward(), True)

    async def _reward(self) -> float | None:
        """Of an environment as TRL's, which is asked once, at the end."""
        returned = await self.calls.call(self.object.get_reward)
        return reward_of(returned, f"what {type(self.object).__name__}.get_reward returned")

    async def close(self) -> None:
        try:
            if callable(getattr(self.object, "close", None)):
                await self.calls.call(self.object.close)
        finally:
            self.calls.end()
