"""The process in which Tandem plays environments: `python -m tandem_rl.environments.worker`, started by the trainer. It reads
lines from descriptor 3 and writes lines to descriptor 4, so that whatever an environment prints goes to the trainer's log. One
process plays many episodes beside each other. Lines are objects of JSON; -> is what the trainer writes:

    -> {"environment": {"kind": "python", "spec": ".."}, "kwargs": {name: text}, "chat_template": "..", "max_turns": 8}
       (or {"kind": "tools", "specs": [..]}, {"kind": "openenv", "spec": URL} or {"kind": "verifiers", "spec": ID or
       FILE.py:NAME})
    <- {"ready": true, "tools": [schema, ..]} or {"error", "traceback"}, which ends the process with 2
    -> {"open": episode, "row": {..}, "prompt": "as rendered, or null", "seed": 5, "history": [{"text", "messages"}, ..]}
    <- {"episode", "turn": 0, "messages": [..]}
    -> {"step": episode, "turn": 1, "text": "..", "finish_reason": "stop", "is_last": false}
    <- {"episode", "turn", "messages", "reward", "done", "info", "seconds"}
       or, to open and to step, {"episode", "turn", "error", "traceback"}, after which the episode is over
    -> {"finish": episode, "turn": 1}       what answered this turn does not fit: no turn follows; the reply is as to a step
    -> {"close": episode}
    -> {"end": true}                        closes what is open, and ends the process
    -> {"rows": {"count": 200, "first_seed": 0}}
    <- {"row": {"prompt": [messages], "answer": "", "seed": 0}} for each, then {"rows": 200} or {"error", "traceback"}

history: the turns of an episode that moves here from a process that ended. They are played again, and must be answered as before;
tools keep nothing of an episode, and are not called again."""
import asyncio
import io
import json
import os
import sys
import threading
import time
from typing import Any

from ..workers.loading import LoadError, value_of
from ..workers.pipe import Pipe, opened, plain
from .episode import Environment, Episode, EpisodeError, Json, Turn, described
from .openenv_client import OpenEnvEnvironment
from .python_objects import PythonEnvironment
from .tool_functions import ToolEnvironment

NOT_SHOWN = ("reset gave a first observation that the prompt does not have: write the prompts of this environment with `tandem "
             "environment ... --write-prompts FILE`, which keeps the seed of each")


def load(hello: Json) -> Environment:
    """The environment that the first line names, or raises LoadError."""
    named = hello["environment"]
    kwargs = {name: value_of(text) for name, text in hello.get("kwargs", {}).items()}
    chat_template = hello.get("chat_template") or ""
    if named["kind"] == "python":
        made = PythonEnvironment(named["spec"], kwargs, chat_template)
        if isinstance(hello.get("row"), dict):
            made.check_row(hello["row"])
        return made
    if named["kind"] == "tools":
        return ToolEnvironment(named["specs"], kwargs, chat_template)
    if named["kind"] == "openenv":
        return OpenEnvEnvironment(named["spec"], kwargs)
    if named["kind"] == "verifiers":
        from .verifiers_rollouts import VerifiersEnvironment  # needs the package
        return VerifiersEnvironment(named["spec"], kwargs, chat_template)
    raise LoadError(f"there is no kind of environment {named['kind']}: there are python, tools, openenv and verifiers")


def _plain(messages: list[Json]) -> list[Json]:
    """Messages as they are written."""
    read: list[Json] = json.loads(plain(json.dumps(messages, ensure_ascii=False)))
    return read


class Playing:
    """An episode that is open: its turns wait here until it takes them."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[Json] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None


class Worker:
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.environment: Environment
        self.episodes: dict[int, Playing] = {}
        self.tasks: set[asyncio.Task[None]] = set()  # the event loop itself holds them weakly

    def run(self) -> int:
        hello = self.pipe.hello()
        if hello is None:
            return 0
        try:
            self.environment = load(hello)
        except LoadError as error:
            self.pipe.write_load_error(error)
            return 2
        self.pipe.write({"ready": True, "tools": self.environment.tools})
        asyncio.run(self.serve())
        return 0

    async def serve(self) -> None:
        """Takes lines until the trainer has gone, which ends the process (workers/pipe.py) whatever is still being played."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in self.pipe.input:
                loop.call_soon_threadsafe(self.take, json.loads(line))

        threading.Thread(target=read, daemon=True).start()
        await asyncio.Event().wait()

    def take(self, request: Json) -> None:
        if "open" in request:
            self.take({"close": request["open"]})  # an episode of that number would be forgotten
            playing = Playing()
            self.episodes[request["open"]] = playing
            playing.task = self.start(self.play(request, playing))
        elif "step" in request:
            if request["step"] in self.episodes:
                self.episodes[request["step"]].steps.put_nowait(request)
            else:
                self.pipe.write({"episode": request["step"], "turn": request["turn"], "error": "the episode is not open"})
        elif "close" in request:
            closed = self.episodes.pop(request["close"], None)
            if closed is not None and closed.task is not None:
                closed.task.cancel()
        elif "finish" in request:
            self.take({**request, "step": request["finish"]})
        elif "end" in request:
            self.start(self.end())
        elif "rows" in request:
            self.start(self.write_rows(**request["rows"]))

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def play(self, request: Json, playing: Playing) -> None:
        """One episode from its open to its close. It ends by an error, or is cancelled."""
        number, turn = request["open"], 0
        episode: Episode | None = None
        try:
            row = request["row"] if isinstance(request["row"], dict) else {}
            seed = row["seed"] if type(row.get("seed")) is int else request["seed"]
            episode = self.environment.open(row, seed)
            messages = await episode.reset()
            self.check_prompt(messages, request.get("prompt"))
            history = request.get("history") or []
            await self.play_again(episode, history)
            self.pipe.write({"episode": number, "turn": 0, "messages": messages})
            turn = len(history)
            is_done = False
            while True:
                step = await playing.steps.get()
                turn += "finish" not in step
                if step["turn"] != turn or is_done:
                    raise EpisodeError(f"the trainer gave turn {step['turn']} where {'none' if is_done else turn} comes next")
                is_done = await self.answer(number, episode, step)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self.episodes.get(number) is playing:
                del self.episodes[number]
                self.pipe.write({"episode": number, "turn": turn, **described(error, self.environment.file)})
        finally:
            if episode is not None:
                await self.close(episode)

    @staticmethod
    def check_prompt(messages: list[Json], prompt: str | None) -> None:
        """The model is shown the prompt of the data, and has to see what reset said."""
        if prompt is not None and not all(message["content"].strip() in prompt for message in messages):
            raise EpisodeError(NOT_SHOWN)

    async def play_again(self, episode: Episode, history: list[Json]) -> None:
        for i, played in enumerate(history if episode.keeps_state else [], 1):
            reply = await episode.step(Turn(played["text"]))
            if reply.done or _plain(reply.messages) != played["messages"]:
                raise EpisodeError(f"the environment did not repeat itself: played again with the same seed and turns, it answers "
                                   f"turn {i} with {'the end' if reply.done else json.dumps(reply.messages)[:200]}, and answered "
                                   f"{json.dumps(played['messages'])[:200]}: make reset and step depend on seed, row and the turns "
                                   "alone")

    async def answer(self, number: int, episode: Episode, step: Json) -> bool:
        """Plays a turn, and returns whether it was the last."""
        start = time.monotonic()
        is_last = "finish" in step or bool(step["is_last"])
        reply = await (episode.finish() if "finish" in step else episode.step(Turn(step["text"], step["finish_reason"], is_last)))
        self.pipe.write({"episode": number, "turn": step["turn"], "messages": [] if is_last else reply.messages,
                         "reward": reply.reward, "done": reply.done or is_last, "info": reply.info,
                         "seconds": time.monotonic() - start})
        return reply.done or is_last

    async def end(self) -> None:
        """Closes the episodes that are open, and ends the process."""
        for number in list(self.episodes):
            self.take({"close": number})
        others = [task for task in self.tasks if task is not asyncio.current_task()]
        await asyncio.gather(*others, return_exceptions=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of episodes may still be at work

    async def close(self, episode: Episode) -> None:
        """What raises here changes nothing of the episode any more, and is told in the log."""
        try:
            await episode.close()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            told = described(error, self.environment.file)
            print(f"closing an episode: {told['error']}\n{told.get('traceback', '')}", file=sys.stderr, flush=True)

    async def write_rows(self, count: int, first_seed: int) -> None:
        try:
            async for row in self.environment.rows(count, first_seed):
                self.pipe.write({"row": row})
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.pipe.write(described(error, self.environment.file))
            return
        self.pipe.write({"rows": count})


def main() -> int:
    pipe = opened("tandem_rl.environments.worker", "(trainer.environment of a run file); `tandem environment` tries an environment")
    if pipe is None:
        return 2
    os.dup2(2, 1)  # what environments print is for the log, line by line
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return Worker(pipe).run()


if __name__ == "__main__":
    sys.exit(main())
