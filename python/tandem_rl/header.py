"""The header of capture format 3 (docs/records.md) and its checks, with the sentences of `tandem drift check`."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .fields import FORMAT, IMPORT_ADVICE, ROW_FIELDS, RecordsError, depth, found, is_number, is_whole, suggestion

Check = Callable[[Any, str], None]


def fail(what: str, value: Any) -> None:
    raise RecordsError(f"expected {what}, found {found(value, 60)}")


def text(value: Any, _: str) -> None:
    if not isinstance(value, str):
        fail("a text", value)


def one_of(first: str, second: str) -> Check:
    def check(value: Any, _: str) -> None:
        if value not in (first, second):
            fail(f'"{first}" or "{second}"', value)
    return check


def whole(least: float) -> Check:
    def check(value: Any, _: str) -> None:
        if not is_whole(value) or value < least:
            fail("a whole number" if least == -math.inf else f"a whole number of at least {least}", value)
    return check


def real(what: str, is_right: Callable[[float], bool]) -> Check:
    def check(value: Any, _: str) -> None:
        if not is_number(value) or not math.isfinite(value) or not is_right(value):
            fail(what, value)
    return check


def ids(value: Any, _: str) -> None:
    if not isinstance(value, list):
        fail("a list of token ids", value)
    for one in value:
        whole(0)(one, "")
        if one >= 2**31:
            fail("token ids below 2^31", one)


def an_object(value: Any, _: str) -> None:
    if not isinstance(value, dict):
        fail("an object", value)


def fields(checks: Mapping[str, Check]) -> Check:
    """An object with these fields; null is the same as an absent one. `prefix` names the object in messages."""
    def check(value: Any, prefix: str) -> None:
        an_object(value, prefix)
        for name, part in value.items():
            path = prefix + name
            if name not in checks:
                raise RecordsError(f"{path}: expected a field of docs/records.md, found another"
                                   f"{suggestion(name, checks)} (what is your own belongs into `extra`"
                                   + (" of the header)" if prefix else ")"))
            if part is None:
                continue
            try:
                checks[name](part, path + ".")
            except RecordsError as error:
                raise error if str(error).startswith(path + ".") else RecordsError(f"{path}: {error}") from None
    return check


SHARE = real("a number from 0 to 1", lambda x: 0 <= x <= 1)
ANY = real("a number", lambda x: True)
SIDE: dict[str, Check] = {
    **dict.fromkeys(("engine", "engine_version", "dtype", "weights"), text), "logprobs": one_of("raw", "processed"),
    "temperature": real("a number of at least 0", lambda x: x >= 0), "top_k": whole(-math.inf), "top_p": SHARE,
    "min_p": SHARE, "repetition_penalty": real("a number above 0", lambda x: x > 0), "frequency_penalty": ANY,
    "presence_penalty": ANY, "min_tokens": whole(0)}
ORIGIN = fields(dict.fromkeys(("from", "transform", "digits"), text))
HEADER = fields({
    "tandem_capture": lambda value, prefix: None, "model": text, "tokenizer": text, "vocab_size": whole(1),
    "eos_token_ids": ids, "created_by": text, "created_at": text, "behaviour": fields(SIDE),
    "proximal": fields({**SIDE, "policy": one_of("proximal", "moving")}),
    "columns": fields(dict.fromkeys(ROW_FIELDS, ORIGIN)), "extra": an_object})


def check_header(header: Any) -> dict[str, Any]:
    """The header, whose fields that are null are left out. Raises RecordsError."""
    if depth(header) > 100:
        raise RecordsError("expected a header nested at most 100 deep, found a deeper one")
    if not isinstance(header, dict):
        fail("the header, a JSON object", header)
    if "tandem_capture" not in header:
        raise RecordsError('tandem_capture: expected the header as the first line, {"tandem_capture": 3, ...}, found an '
                           f"object without it: {IMPORT_ADVICE}")
    if header["tandem_capture"] != FORMAT:
        raise RecordsError(f"tandem_capture: expected {FORMAT}, the format that this program reads, found "
                           f"{found(header['tandem_capture'], 60)}")
    HEADER(header, "")
    return {name: value for name, value in header.items() if value is not None}
