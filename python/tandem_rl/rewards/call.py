"""Calls a reward function about the completions of one group as TRL's GRPOTrainer does (trl 1.16), and reads what it
returns. Used by worker.py."""
import asyncio
import inspect
import math
import numbers
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ..workers.loading import last_line, place_of
from .functions import ANSWERS, Function
from .rubric import RubricError

Json = dict[str, Any]
WANT = "want a number, None where the function does not apply, or {\"reward\": number, \"parts\": .., \"steps\": .., \"tokens\": ..}"


class ResultError(Exception):
    """A function returned what is no list of rewards."""


@dataclass
class Logged:
    """What a function logs beside its rewards."""
    metrics: dict[str, list[float]] = field(default_factory=dict)  # sum and count
    extra: dict[str, list[Any]] = field(default_factory=dict)  # by column, one for each completion

    def log_metric(self, name: str, value: float) -> None:
        entry = self.metrics.setdefault(str(name), [0.0, 0])
        entry[0] += float(value)
        entry[1] += 1

    def log_extra(self, column: str, values: list[Any]) -> None:
        self.extra[str(column)] = list(values)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def prompt_of(row: Json, rendered: str) -> Any:
    """The prompt of a line of the data as TRL has it: messages or text."""
    for key in ("messages", "prompt", "question"):
        if _is_messages(row.get(key)) or isinstance(row.get(key), str):
            return row[key]
    return rendered


def arguments(function: Function, group: Json, form: str, logged: Logged) -> dict[str, Any]:
    """The keyword arguments of a call. `form`: "auto", "text" or "messages"."""
    row = group["source"] if isinstance(group["source"], dict) else {}
    count = len(group["completions"])
    prompt = prompt_of(row, group["prompt"])
    played = any(completion.get("messages") for completion in group["completions"])
    as_messages = form == "messages" or (form == "auto" and (played or _is_messages(prompt)))
    if as_messages and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    texts = [completion["text"] for completion in group["completions"]]
    columns = {key: value for key, value in row.items() if key not in ("prompt", "completion", "completion_ids")}
    columns.setdefault("answer", group["answer"])
    for name in ANSWERS:
        if name in function.names and name not in columns:
            columns[name] = group["answer"]
    # Each call has copies: a function that changes what it gets does not change what another gets.
    given: dict[str, Any] = {key: [_copy(value) for _ in range(count)] for key, value in columns.items()}
    given["prompts"] = [_copy(prompt) for _ in range(count)]
    given["completions"] = [_copy(completion.get("messages")) or [{"role": "assistant", "content": completion["text"]}]
                            for completion in group["completions"]] if as_messages else texts
    given["completion_ids"] = [list(completion["ids"]) for completion in group["completions"]]
    given["trainer_state"] = SimpleNamespace(global_step=group["step"], max_steps=group["num_steps"])
    given["log_extra"] = logged.log_extra
    given["log_metric"] = logged.log_metric
    given.update(function.kwargs)
    return {name: value for name, value in given.items() if function.takes(name)}


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _number(value: Any, what: str) -> float:
    if hasattr(value, "item") and not isinstance(value, numbers.Number):
        value = value.item()  # of numpy or torch
    if not isinstance(value, numbers.Real):
        raise ResultError(f"{what} is {value!r:.80}, {type(value).__name__}: {WANT}")
    if not math.isfinite(value):
        raise ResultError(f"{what} is {float(value)}: want a finite number, or None where the function does not apply")
    return float(value)


def _steps(steps: Any, text: str, what: str) -> list[Json]:
    if not isinstance(steps, (list, tuple)):
        raise ResultError(f"{what}: \"steps\" is {type(steps).__name__}, want [{{\"end\": characters, \"reward\": number}}, ..]")
    read: list[Json] = []
    before = 0
    for number, step in enumerate(steps):
        end = step.get("end") if isinstance(step, dict) else None
        if not isinstance(step, dict) or not isinstance(end, int) or "reward" not in step:
            raise ResultError(f"{what}: step {number} is {step!r:.80}, want {{\"end\": characters, \"reward\": number}}")
        if not before < end <= len(text):
            raise ResultError(f"{what}: step {number} ends at character {end}, want one after {before} and at most {len(text)}")
        read.append({"end": len(text[:end].encode("utf-8", "replace")),
                     "reward": _number(step["reward"], f"{what}: the reward of step {number}")})
        before = end
    return read


def _reward(value: Any, completion: Json, what: str) -> Json | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        return {"reward": _number(value, what)}
    unknown = sorted(set(map(str, value)) - {"reward", "parts", "steps", "tokens"})
    if unknown or not set(value) & {"reward", "steps", "tokens"}:
        raise ResultError(f"{what} has {'the key ' + unknown[0] if unknown else 'no reward'}: {WANT}")
    if "reward" in value and value["reward"] is None:
        return None
    read: Json = {"reward": _number(value.get("reward", 0.0), what)}
    if value.get("parts"):
        if not isinstance(value["parts"], dict):
            raise ResultError(f"{what}: \"parts\" is {type(value['parts']).__name__}, want {{name: number}}")
        read["parts"] = {str(name): _number(part, f"{what}: the part {name}") for name, part in value["parts"].items()
                         if part is not None}
    if value.get("steps") is not None:
        read["steps"] = _steps(value["steps"], completion["text"], what)
    if value.get("tokens") is not None:
        tokens = value["tokens"].tolist() if hasattr(value["tokens"], "tolist") else list(value["tokens"])
        if len(tokens) != len(completion["ids"]):
            raise ResultError(f"{what}: \"tokens\" has {len(tokens)} rewards, and the completion has {len(completion['ids'])} "
                              "tokens (completion_ids)")
        read["tokens"] = [_number(token, f"{what}: the reward of token {t}") for t, token in enumerate(tokens)]
    return read


def rewards_of(function: Function, returned: Any, completions: list[Json]) -> list[Json | None]:
    """Reads what a function returned, or raises ResultError."""
    if hasattr(returned, "tolist"):  # of numpy or torch
        returned = returned.tolist()
    if not isinstance(returned, (list, tuple)):
        raise ResultError(f"{function.name} returned {type(returned).__name__}, want a list of {len(completions)} rewards, one "
                          "for each completion")
    if len(returned) != len(completions):
        raise ResultError(f"{function.name} returned {len(returned)} rewards for {len(completions)} completions: want one for "
                          "each, in order")
    return [_reward(value, completions[i], f"reward {i} of {function.name}") for i, value in enumerate(returned)]


def _failed(function: Function, error: BaseException) -> Json:
    file = getattr(inspect.getmodule(function.call), "__file__", None)
    if isinstance(error, (ResultError, RubricError)):
        return {"error": str(error)}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the way to the function says nothing of its fault
    return {"error": f"{last_line(error)} ({place_of(error, os.path.realpath(file) if file else None)})",
            "traceback": "".join(traceback.format_exception(type(error), error, frames)).rstrip()}


async def _wait_for(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _call(function: Function, group: Json, form: str, logged: Logged) -> list[Json | None]:
    returned = function.call(**arguments(function, group, form, logged))
    if inspect.isawaitable(returned):
        returned = await returned if function.is_async else asyncio.run(_wait_for(returned))
    return rewards_of(function, returned, group["completions"])


async def answer(function: Function, group: Json, form: str) -> Json:
    """The line about one group. What raises is asked again, each completion in a call of its own, so that one that makes
    the function raise takes no other with it."""
    start = time.monotonic()
    logged = Logged()
    rewards: list[Json | None]
    try:
        rewards = await _call(function, group, form, logged)
    except ResultError as error:
        rewards = [_failed(function, error)] * len(group["completions"])
    except BaseException as error:  # SystemExit too: a function does not end the worker
        if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
            raise
        rewards = [_failed(function, error)]
    if len(rewards) < len(group["completions"]):
        rewards = [await _answer_alone(function, {**group, "completions": [completion]}, form)
                   for completion in group["completions"]]
    return {"id": group["id"], "rewards": rewards, "seconds": time.monotonic() - start, "logged": logged.metrics,
            "extra": {column: list(map(str, values)) for column, values in logged.extra.items()}}


async def _answer_alone(function: Function, group: Json, form: str) -> Json | None:
    reply = await answer(function, group, form)
    reward: Json | None = reply["rewards"][0]
    return reward


def answer_all(function: Function, groups: list[Json], form: str, write: Callable[[Json], None]) -> None:
    """Answers groups: one after the other, or, of a coroutine function, all beside each other."""
    async def one(group: Json) -> None:
        write(await answer(function, group, form))

    async def all_of_them() -> None:
        await asyncio.gather(*(one(group) for group in groups))

    if function.is_async:
        asyncio.run(all_of_them())
        return
    for group in groups:
        _run_without_loop(one(group))


def _run_without_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs what waits for nothing, outside of an event loop: a function that is none of coroutines may start its own."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a call waited outside of an event loop")
