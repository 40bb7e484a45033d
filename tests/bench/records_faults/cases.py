"""The cases: which numbers go into which column, what the header claims, and what is true."""
from __future__ import annotations

import dataclasses
import random
import shutil
from typing import Any, Callable

import torch

import pools
from player import END, write_case

Values = list[list[float]]
Edit = Callable[[int, dict, list], list]  # number of the row, the row, the whole column of T -> the new column


@dataclasses.dataclass
class Case:
    """One capture. `behaviour` and `proximal` are values of drawn tokens, one list a row."""

    name: str
    side: str
    kind: str
    size: str
    visible: bool
    notes: str
    source: str
    rows: list[dict]
    behaviour: Values
    proximal: Values
    behaviour_claims: dict[str, Any] = dataclasses.field(default_factory=dict)
    proximal_claims: dict[str, Any] = dataclasses.field(default_factory=dict)
    entropy: Values | None = None  # of the proximal side
    edit_behaviour: Edit | None = None
    edit_proximal: Edit | None = None
    weights: str = ""  # a directory under runs/faults/weights
    behaviour_version: int | None = None
    proximal_version: int | None = None
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)
    edit_rows: Callable[[list[dict]], None] | None = None


def column(row: dict, values: list) -> list:
    return [None] * len(row["prompt"]) + list(values)


def write(case: Case) -> None:
    lines = []
    for i, row in enumerate(case.rows):
        behaviour, proximal = column(row, case.behaviour[i]), column(row, case.proximal[i])
        line = {
            "row_id": f"{case.name}/{i}", "group_id": row["group"], "token_ids": row["prompt"] + row["tokens"],
            "prompt_length": len(row["prompt"]), "finish_reason": row["finish"], "stop_token_kept": row["finish"] == "stop",
            "behaviour_logprobs": case.edit_behaviour(i, row, behaviour) if case.edit_behaviour else behaviour,
            "proximal_logprobs": case.edit_proximal(i, row, proximal) if case.edit_proximal else proximal,
        }
        if row["finish"] != "stop":
            del line["stop_token_kept"]
        if case.entropy is not None:
            line["proximal_entropy"] = column(row, case.entropy[i])
        if case.behaviour_version is not None:
            line["weight_version"], line["proximal_version"] = case.behaviour_version, case.proximal_version
        lines.append(line)
    if case.edit_rows:
        case.edit_rows(lines)
    header = {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "vocab_size": 49152, "eos_token_ids": [END], "created_by": "player",
        "behaviour": {"engine": "player", "dtype": "float32", "logprobs": "processed", "temperature": 1.0, **case.behaviour_claims},
        "proximal": {"engine": "transformers", "dtype": "float32", "policy": "proximal", "temperature": 1.0, **case.proximal_claims},
    }
    if case.columns:
        header["columns"] = case.columns
    gaps = [abs(p - b) for bs, ps in zip(case.behaviour, case.proximal) for b, p in zip(bs, ps) if b is not None]
    finite = [gap for gap in gaps if gap < float("inf")]
    truth = {
        "name": case.name, "side": case.side, "class": case.kind, "size": case.size, "visible_without_weights": case.visible,
        "notes": case.notes, "source": case.source, "rows": len(lines), "drawn_tokens": len(gaps),
        "mean_abs_delta_before_record_faults": sum(finite) / len(finite), "proximal_entropy": case.entropy is not None,
        "model_dir": str(pools.MODEL.relative_to(pools.ROOT)),
    }
    if case.weights:
        truth["weights_dir"] = str((pools.WEIGHTS / case.weights).relative_to(pools.ROOT))
    write_case(pools.FAULTS / "cases" / case.name, truth, header, lines)


def shifted(by: int) -> Edit:
    """Element t holds what belongs to t - by; ends that nothing fills have no value."""
    def edit(i: int, row: dict, values: list) -> list:
        return [values[t - by] if 0 <= t - by < len(values) else None for t in range(len(values))]
    return edit


def mapped(change: Callable[[float], Any]) -> Edit:
    return lambda i, row, values: [v if v is None else change(v) for v in values]


def last(value: Any) -> Edit:
    return lambda i, row, values: values[:-1] + [value] if row["finish"] == "stop" else values


def some(share: float, value: Any) -> Edit:
    """`value` in place of a share of the drawn tokens."""
    def edit(i: int, row: dict, values: list) -> list:
        dice = random.Random(1000 + i)
        return [v if v is None or dice.random() >= share else value for v in values]
    return edit


def padded_left(longest: int) -> Edit:
    """The engine pads completions on the left to the longest, the reader takes the first n."""
    def edit(i: int, row: dict, values: list) -> list:
        n = len(row["tokens"])
        return values[:-n] + ([0.0] * (longest - n) + values[-n:])[:n]
    return edit


def from_the_start(i: int, row: dict, values: list) -> list:
    """The engine's list begins with the prompt; the reader takes its first n as the completion's."""
    n, before = len(row["tokens"]), len(row["prompt"])
    return values[:before] + (([0.0] * before) + values[before:])[:n]


def permute(lines: list[dict]) -> None:
    """Behaviour columns go to the next row, cut or filled to its length, as a sort on one side does."""
    drawn = [line["behaviour_logprobs"][line["prompt_length"]:] for line in lines]
    for i, line in enumerate(lines):
        start, other = line["prompt_length"], drawn[(i + 3) % len(drawn)]
        n = len(line["token_ids"]) - start
        line["behaviour_logprobs"] = [None] * start + (other * n)[:n]


def no_end(side: str) -> Callable[[list[dict]], None]:
    def edit(lines: list[dict]) -> None:
        for line in lines:
            if line["finish_reason"] == "stop":
                line[side][-1] = None
    return edit


def bf16(value: float) -> float:
    return float(torch.tensor(value).bfloat16())


def add_all(add: Callable[..., None]) -> None:
    """Calls `add` for every case; a missing pool or score leaves its cases out."""
    from case_list import healthy, models, records, samplers
    for part in (healthy, records, samplers, models):
        part(add)


def write_all() -> None:
    """Writes the cases whose numbers are in the pool; `missing` names are printed."""
    shutil.rmtree(pools.FAULTS / "cases", ignore_errors=True)
    count = 0

    def add(make: Callable[[], Case]) -> None:
        nonlocal count
        try:
            case = make()
        except LookupError as error:
            print("not there yet:", error)
            return
        write(case)
        count += 1

    add_all(add)
    print(count, "cases in", pools.FAULTS / "cases")


def rows_of(name: str) -> list[dict]:
    if not (pools.POOL / f"{name}.json").exists():
        raise LookupError(name)
    return pools.draws(name)


def scores_of(name: str) -> dict[str, list]:
    if not (pools.POOL / f"{name}.json").exists():
        raise LookupError(name)
    return pools.scores(name)


def column_of(rows: list[dict], name: str) -> Values:
    return [row[name] for row in rows]


