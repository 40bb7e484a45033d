"""What an engine is asked for and what it answers, checked as docs/engines.md says. Free of every engine's library."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

PROTOCOL = 1


class Refused(Exception):
    """An answer that is an error. `kind` is "invalid" (the request breaks the protocol or the model's limits), "unsupported"
    (this engine cannot do it) or "failed" (it tried)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class SampleRequest:
    prompts: list[list[int]]
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    max_new_tokens: int = 64
    seed: int = 0
    logprobs: str = "processed"  # or "raw"


@dataclass(frozen=True)
class ScoreRow:
    token_ids: list[int]
    prompt_length: int


@dataclass(frozen=True)
class ScoreRequest:
    rows: list[ScoreRow]
    temperature: float = 1.0


@dataclass
class Completion:
    """What was drawn after prompt number `prompt`; the lists have an element for each drawn token, end token included."""
    prompt: int
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop" or "length"
    raw_logprobs: list[float] | None = None
    entropies: list[float] | None = None


@dataclass
class RowScore:
    """Of each token of a row after its prompt."""
    logprobs: list[float]
    entropies: list[float] | None = None


@dataclass
class Info:
    engine: str
    version: str
    dtype: str  # as in the header of a records file
    can: list[str]  # of "sample", "score", "load_weights"
    details: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """What an adapter provides. Methods raise Refused; every other exception is answered as "failed"."""

    def info(self) -> Info: ...
    def sample(self, request: SampleRequest) -> list[Completion]: ...
    def score(self, request: ScoreRequest) -> list[RowScore]: ...
    def load_weights(self, directory: str) -> None: ...


def _wrong(where: str, expected: str, found: Any) -> Refused:
    text = repr(found)
    return Refused("invalid", f"{where}: expected {expected}, found {text if len(text) <= 60 else text[:57] + '...'}")


def _only(request: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in request:
        if name not in ("id", "do", *names):
            raise Refused("invalid", f"{name}: no such field in a request to {request['do']}; it has {', '.join(names) or 'none'}")


def _integer(request: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = request.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _wrong(name, f"an integer of {least} or more", value)
    return value


def _number(request: Mapping[str, Any], name: str, default: float, most: float) -> float:
    value = request.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= most or math.isinf(value):
        raise _wrong(name, "a number above 0" + (f" and up to {most:g}" if math.isfinite(most) else ""), value)
    return float(value)


def _ids(where: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not value or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        raise _wrong(where, "token ids, at least one", value)
    return value


def _list(request: Mapping[str, Any], name: str) -> list[Any]:
    value = request.get(name)
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a list with at least one element", value)
    return value


def sample_request(request: Mapping[str, Any]) -> SampleRequest:
    _only(request, ["prompts", "n", "temperature", "top_k", "top_p", "max_new_tokens", "seed", "logprobs"])
    logprobs = request.get("logprobs", "processed")
    if logprobs not in ("processed", "raw"):
        raise _wrong("logprobs", '"processed" or "raw"', logprobs)
    return SampleRequest(
        prompts=[_ids(f"prompts[{i}]", ids) for i, ids in enumerate(_list(request, "prompts"))],
        n=_integer(request, "n", 1, 1),
        temperature=_number(request, "temperature", 1.0, math.inf),
        top_k=_integer(request, "top_k", 0, 0),
        top_p=_number(request, "top_p", 1.0, 1.0),
        max_new_tokens=_integer(request, "max_new_tokens", 64, 1),
        seed=_integer(request, "seed", 0, 0),
        logprobs=logprobs)


def score_request(request: Mapping[str, Any]) -> ScoreRequest:
    _only(request, ["rows", "temperature"])
    rows = []
    for i, row in enumerate(_list(request, "rows")):
        if not isinstance(row, dict):
            raise _wrong(f"rows[{i}]", "an object with token_ids and prompt_length", row)
        ids = _ids(f"rows[{i}].token_ids", row.get("token_ids"))
        length = row.get("prompt_length")
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length < len(ids):
            raise _wrong(f"rows[{i}].prompt_length", f"an integer from 1 to {len(ids) - 1}", length)
        rows.append(ScoreRow(ids, length))
    return ScoreRequest(rows, _number(request, "temperature", 1.0, math.inf))


def number_of(value: float) -> float | str:
    """A number as it stands in JSON: those that JSON does not have become texts."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def completion_json(completion: Completion) -> dict[str, Any]:
    answer: dict[str, Any] = {"prompt": completion.prompt, "token_ids": completion.token_ids,
                              "logprobs": [number_of(x) for x in completion.logprobs],
                              "finish_reason": completion.finish_reason}
    for name, values in (("raw_logprobs", completion.raw_logprobs), ("entropies", completion.entropies)):
        if values is not None:
            answer[name] = [number_of(x) for x in values]
    return answer


def score_json(score: RowScore) -> dict[str, Any]:
    answer: dict[str, Any] = {"logprobs": [number_of(x) for x in score.logprobs]}
    if score.entropies is not None:
        answer["entropies"] = [number_of(x) for x in score.entropies]
    return answer
