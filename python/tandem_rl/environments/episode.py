"""What the four kinds of environment have in common: an Environment opens episodes, an Episode is reset once, stepped with each
turn of the model and closed. Used by worker.py."""
import asyncio
import concurrent.futures
import functools
import inspect
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from ..workers.loading import LoadError, is_async, last_line, place_of

Json = dict[str, Any]
_HERE = os.path.dirname(os.path.realpath(__file__))


class EpisodeError(Exception):
    """An environment cannot go on, and the message says all of why."""


class Raised(Exception):
    """Code of the user raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Turn:
    """A turn of the model."""
    text: str
    finish_reason: str = "stop"
    is_last: bool = False  # no further turn can follow


@dataclass
class Reply:
    """What the environment says to a turn."""
    messages: list[Json]
    reward: float | None = None
    done: bool = False
    info: dict[str, float] = field(default_factory=dict)


class Episode(ABC):
    keeps_state = True  # whether turns that were played elsewhere have to be played again

    @abstractmethod
    async def reset(self) -> list[Json]:
        """Starts the episode and returns the first observation, [] if there is none. Raises EpisodeError or Raised, as all do."""

    @abstractmethod
    async def step(self, turn: Turn) -> Reply: ...

    async def finish(self) -> Reply:
        """What the last turn was answered with does not fit into the tokens that are left: no turn follows. The reply has the
        reward that is still to come, and no message."""
        return Reply([], None, True)

    async def close(self) -> None:
        """Called once, also after an error or in the middle of a step that was given up."""


class Environment(ABC):
    def __init__(self) -> None:
        self.tools: list[Json] = []  # JSON schemas, as chat templates take them
        self.file: str | None = None  # of the user's code

    @abstractmethod
    def open(self, row: Json, seed: int) -> Episode:
        """A new episode. `row`: the line of the data."""

    async def rows(self, count: int, first_seed: int) -> AsyncIterator[Json]:
        """Lines of a data file: for each seed the first observation as the prompt."""
        for seed in range(first_seed, first_seed + count):
            episode = self.open({"seed": seed}, seed)
            try:
                messages = await episode.reset()
            finally:
                await episode.close()
            if not messages:
                raise EpisodeError(f"reset gave no first observation for the seed {seed}, so there is no prompt to write: write "
                                   "the data file by hand, with the prompts that say what is to be done")
            yield {"prompt": messages, "answer": "", "seed": seed}


class CallsOfUser:
    """Calls the user's functions for one episode: coroutines on the event loop, others in a thread that is the episode's own,
    so that one which waits holds up no other episode, and objects bound to a thread stay in it."""

    def __init__(self) -> None:
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function does, or raises Raised."""
        try:
            if is_async(function):
                returned = function(*args, **kwargs)
            else:
                returned = await self._in_thread(functools.partial(function, *args, **kwargs))
            return await returned if inspect.isawaitable(returned) else returned
        except (asyncio.CancelledError, Raised):
            raise
        except BaseException as error:  # SystemExit too: an environment does not end the worker
            raise Raised(error) from error

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        def outcome() -> tuple[Any, BaseException | None]:
            try:
                return function(), None
            except BaseException as error:
                return None, error

        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="episode")
        returned, error = await asyncio.get_running_loop().run_in_executor(self._thread, outcome)
        if error is not None:
            raise Raised(error)
        return returned

    def end(self) -> None:
        """The thread ends once it has done what it was given."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def file_of(value: Any) -> str | None:
    """The file that has the user's code."""
    file = getattr(inspect.getmodule(value), "__file__", None)
    return os.path.realpath(file) if file else None


def described(error: BaseException, file: str | None) -> Json:
    """{"error", "traceback"} of what an episode raised."""
    if isinstance(error, (EpisodeError, LoadError)):
        return {"error": str(error)}
    if isinstance(error, Raised):
        error = error.error
    frames = error.__traceback__
    while frames is not None and _is_of_us(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next  # the way to the user's code says nothing of its fault
    return {"error": f"{last_line(error)} ({place_of(error, file)})",
            "traceback": "".join(traceback.format_exception(type(error), error, frames)).rstrip()}


def _is_of_us(file: str) -> bool:
    return os.path.dirname(file) == _HERE or file.endswith(os.path.join("concurrent", "futures", "thread.py"))
