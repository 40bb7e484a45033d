"""The fields of capture format 3 (docs/records.md) and their checks, with the sentences of `tandem drift check`."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

import numpy as np

FORMAT = 3
# The end of the message about a file that may be another framework's; that of drift_lab/records/records_form.h.
IMPORT_ADVICE = "`tandem drift import --from NAME FILE --out records.jsonl` makes records of what other frameworks write"
COLUMNS = ("behaviour_logprobs", "proximal_logprobs", "behaviour_raw_logprobs", "behaviour_score_logprobs",
           "reference_logprobs", "behaviour_entropy", "proximal_entropy", "advantages")
TOPS = ("behaviour", "proximal")
ROW_FIELDS = ("token_ids", "prompt_length", "loss_mask", *COLUMNS[:-1], "behaviour_top_ids", "proximal_top_ids",
              "behaviour_top_logprobs", "proximal_top_logprobs", "version_spans", "weight_version", "proximal_version",
              "step", "group_id", "row_id", "finish_reason", "stop_token_kept", "reward", "advantage", "advantages",
              "prompt_text", "completion_text", "extra")
# What frameworks call the fields of a row.
FOREIGN_NAMES = {
    **dict.fromkeys(("rollout_log_probs", "generation_logprobs", "sampling_per_token_logps", "inference_logprobs",
                     "generator_logprobs", "vllm_logprobs"), "behaviour_logprobs"),
    **dict.fromkeys(("old_log_probs", "old_per_token_logps", "prev_logprobs", "prox_logp", "trainer_logprobs"),
                    "proximal_logprobs"),
    **dict.fromkeys(("ref_log_prob", "ref_log_probs", "ref_logprobs"), "reference_logprobs"),
    **dict.fromkeys(("response_mask", "completion_mask", "assistant_masks"), "loss_mask"),
    **dict.fromkeys(("input_ids", "tokens"), "token_ids")}
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RecordsError(ValueError):
    """A file or a row is not of format 3. The message says file, line or row, field, what was expected and found."""


def plain_number(value: Any) -> Any:
    """A number that JSON does not have as its text."""
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return value if is_finite else next(name for name, other in NOT_FINITE.items() if str(other) == str(value))


def found(value: Any, most: int = 40) -> str:
    """What a message shows of a value that is not right."""
    try:
        text = json.dumps(plain_number(value), ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= most else text[:most] + "..."


def distance(a: str, b: str) -> int:
    """Letters added, removed or replaced, and neighbours swapped, between two names."""
    two_before: list[int] = []
    before = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        row = [i + 1]
        for j, other in enumerate(b):
            row.append(min(before[j] + (letter != other), row[j] + 1, before[j + 1] + 1))
            if i and j and a[i] == b[j - 1] and a[i - 1] == other:
                row[-1] = min(row[-1], two_before[j - 1] + 1)
        two_before, before = before, row
    return before[-1]


def suggestion(name: str, names: Iterable[str]) -> str:
    """"; did you mean NAME?", or nothing where no name is near."""
    names = list(names)
    nearest = FOREIGN_NAMES.get(name, "")
    if nearest not in names:
        ending = [one for one in names if name and one.endswith(name) and one[:-len(name)][-1:] in ("-", ".", " ")]
        near = [one for one in names if distance(name, one) <= max(1, max(len(name), len(one)) // 3)]
        nearest = min(ending, key=len) if ending else min(near, key=lambda one: distance(name, one), default="")
    return f"; did you mean {nearest}?" if nearest else ""


def is_whole(value: Any) -> bool:
    """True for 3 and, as JSON does not tell them apart, for 3.0."""
    if isinstance(value, (bool, np.bool_)):
        return False
    if isinstance(value, (int, np.integer)):
        return -2**63 <= int(value) < 2**63
    return isinstance(value, (float, np.floating)) and float(value).is_integer() and abs(float(value)) <= 2**53


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def whole(value: Any) -> int:
    if not is_whole(value):
        raise RecordsError(f"expected a whole number, found {found(value)}")
    return int(value)


def real(value: Any) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if not is_number(value):
        raise RecordsError(f"expected a number, found {found(value)}")
    return float(value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise RecordsError(f"expected a text in UTF-8, found {found(value)}")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise RecordsError(f"expected true or false, found {found(value)}")
    return bool(value)


def group(value: Any) -> str:
    if not is_whole(value) and not isinstance(value, str):
        raise RecordsError(f"expected a whole number or a text, found {found(value)}")
    return value if isinstance(value, str) else str(int(value))


def depth(value: Any) -> int:
    """How deep the objects and lists of a value are nested: 1 for a flat one."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max((depth(part) for part in parts), default=0)


def extra(value: Any) -> None:
    if not isinstance(value, dict) or depth(value) > 100:
        raise RecordsError(f"expected an object, nested at most 100 deep, found {found(value)}")


def listed(value: Any, what: str) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    if not isinstance(value, (list, tuple)):
        raise RecordsError(f"expected {what}, found {found(value)}")
    return list(value)


def not_empty(values: Any) -> None:
    if len(values) == 0:
        raise RecordsError("expected one element for each of token_ids, found an empty list")


def ids(value: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    elements = listed(value, "a list of ids")
    for place, one in enumerate(elements if set(map(type, elements)) - {int} else ()):
        if not is_whole(one):
            raise RecordsError(f"expected a token id (a whole number below 2^31), found {found(one)} at element {place}")
    for place, one in enumerate(elements):
        if not -2**31 <= one < 2**31:
            raise RecordsError(f"expected a token id (a whole number below 2^31), found {found(one)} at element {place}")
    return np.array(elements, dtype=np.int32)


def mask(value: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    elements = listed(value, "a list of 0 and 1")
    for place, one in enumerate(elements):
        if not isinstance(one, bool) and not is_whole(one):
            raise RecordsError(f"expected 0 or 1, found {found(one)} at element {place}")
        if one not in (0, 1):
            raise RecordsError(f"expected 0 or 1, found {found(int(one))}")
    not_empty(elements)
    return np.array(elements, dtype=bool)


def floats(value: Any) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    """The numbers, NaN in place of null, and how many were given. Of an array of numpy, NaN is null."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float32), int(np.count_nonzero(~np.isnan(value)))
    elements = listed(value, "a list of numbers")
    if set(map(type, elements)) - {float, int, type(None)}:
        for place, one in enumerate(elements):
            if isinstance(one, str) and one in NOT_FINITE:
                elements[place] = NOT_FINITE[one]
            elif one is not None and not is_number(one):
                raise RecordsError('expected a number, null, "NaN", "Infinity" or "-Infinity", found '
                                   f"{found(one)} at element {place}")
    with np.errstate(over="ignore"):
        return np.array(elements, dtype=np.float64).astype(np.float32), len(elements) - elements.count(None)


def column(value: Any) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    values = floats(value)
    not_empty(values[0])
    return values


def lists(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """A list of lists, one for each token; null for a token is an empty one."""
    def take(value: Any) -> list[Any]:
        elements = [read([] if one is None else one) for one in listed(value, "a list of lists")]
        not_empty(elements)
        return elements
    return take


def spans(value: Any) -> list[tuple[int, int]]:
    elements = listed(value, "a list of [version, num_tokens]")
    for place, pair in enumerate(elements):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(map(is_whole, pair)):
            raise RecordsError(f"expected [version, num_tokens] of whole numbers, found {found(pair)} at element {place}")
    return [(int(version), int(count)) for version, count in elements]


READ: dict[str, Callable[[Any], Any]] = {
    "token_ids": ids, "prompt_length": whole, "loss_mask": mask, **dict.fromkeys(COLUMNS, column),
    "behaviour_top_ids": lists(ids), "proximal_top_ids": lists(ids),
    "behaviour_top_logprobs": lists(lambda value: floats(value)[0]),
    "proximal_top_logprobs": lists(lambda value: floats(value)[0]),
    "version_spans": spans, "weight_version": whole, "proximal_version": whole, "step": whole, "group_id": group,
    "row_id": text, "finish_reason": text, "stop_token_kept": flag, "reward": real, "advantage": real,
    "prompt_text": text, "completion_text": text, "extra": extra}


def read_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row as numpy arrays and Python values. Raises RecordsError("FIELD: expected ..., found ...")."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        read = READ.get(name)
        if read is None:
            raise RecordsError(f"{name}: expected a field of docs/records.md, found another{suggestion(name, ROW_FIELDS)}"
                               " (what is your own belongs into `extra`)")
        if value is None and name != "token_ids":
            continue
        try:
            fields[name] = read(value)
        except RecordsError as error:
            raise RecordsError(f"{name}: {error}") from None
    return fields


def row_id_of(row: Mapping[str, Any]) -> str:
    """" (row "NAME")" for messages."""
    name: Optional[Any] = row.get("row_id")
    return f' (row "{name}")' if isinstance(name, str) and name else ""
