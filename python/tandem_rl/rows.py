"""What the fields of one row must be to each other (docs/records.md), with the sentences of `tandem drift check`."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from .fields import COLUMNS, TOPS, RecordsError, read_fields


def check_length(field: str, values: Optional[Any], num_tokens: int) -> None:
    if values is not None and len(values) != num_tokens:
        raise RecordsError(f"{field}: expected {num_tokens} elements, one for each of token_ids, found {len(values)}")


def check_ids(field: str, ids: Any, vocab_size: Optional[int]) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size if vocab_size is not None else False))
    if wrong.size:
        below = f" and below the header's vocab_size, {vocab_size}" if vocab_size is not None else ""
        raise RecordsError(f"{field}: expected ids of at least 0{below}, found {ids[wrong[0]]} at element {wrong[0]}")


def drawn_of(fields: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[T] True where the behaviour policy drew the token."""
    num_tokens = len(fields["token_ids"])
    length, mask = fields.get("prompt_length"), fields.get("loss_mask")
    if length is None and mask is None:
        raise RecordsError("prompt_length: expected it or loss_mask, found neither")
    check_length("loss_mask", mask, num_tokens)
    if length is not None and not 0 <= length <= num_tokens:
        raise RecordsError(f"prompt_length: expected 0 to {num_tokens} (the tokens of the row), found {length}")
    if mask is None:
        return np.asarray(np.arange(num_tokens) >= (length or 0), bool)
    ones = np.flatnonzero(mask[:length or 0])
    if ones.size:
        raise RecordsError(f"loss_mask: expected 0 on the {length} tokens of the prompt (prompt_length), found 1 at "
                           f"element {ones[0]}")
    return np.asarray(mask)


def check_top(side: str, fields: Mapping[str, Any], num_tokens: int, vocab_size: Optional[int]) -> None:
    names = f"{side}_top_ids", f"{side}_top_logprobs"
    ids, logprobs = fields.get(names[0]), fields.get(names[1])
    check_length(names[0], ids, num_tokens)
    check_length(names[1], logprobs, num_tokens)
    if ids is None and logprobs is None:
        return
    if ids is None or logprobs is None:
        absent, given = names if ids is None else names[::-1]
        raise RecordsError(f"{absent}: expected beside {given}, found nothing")
    for place, (some, values) in enumerate(zip(ids, logprobs)):
        if len(some) != len(values):
            raise RecordsError(f"{names[1]}: expected {len(some)} log-probs at element {place}, as many as in {names[0]}, "
                               f"found {len(values)}")
    check_ids(names[0], np.concatenate(ids), vocab_size)


def check_versions(fields: Mapping[str, Any], num_drawn: int) -> None:
    spans, version = fields.get("version_spans", []), fields.get("weight_version")
    for of_span, count in spans:
        if not 1 <= count <= num_drawn:
            raise RecordsError(f"version_spans: expected spans of 1 to {num_drawn} tokens (those drawn), found "
                               f"[{of_span}, {count}]")
        if version is not None and version != of_span:
            raise RecordsError("weight_version: expected the version of every span, or the field left out, found "
                               f"{version} beside a span of version {of_span}")
    total = sum(count for _, count in spans)
    if spans and total != num_drawn:
        raise RecordsError(f"version_spans: expected numbers of tokens that add up to the {num_drawn} drawn ones, found "
                           f"{total}")


def read_row(row: Mapping[str, Any], vocab_size: Optional[int] = None) -> dict[str, Any]:
    """Checks a row; its fields as numpy arrays and Python values, with `drawn` ([T] bool) beside them."""
    fields = read_fields(row)
    ids = fields.get("token_ids")
    if ids is None or len(ids) == 0:
        raise RecordsError("token_ids: expected the ids of the row's tokens, found none")
    check_ids("token_ids", ids, vocab_size)
    drawn = fields["drawn"] = drawn_of(fields)
    for name in COLUMNS:
        if name in fields:
            check_length(name, fields[name][0], len(ids))
    if "behaviour_logprobs" not in fields and "proximal_logprobs" not in fields:
        raise RecordsError("behaviour_logprobs: expected it or proximal_logprobs in every row, found neither")
    if "advantage" in fields and "advantages" in fields:
        raise RecordsError("advantages: expected it or advantage, found both")
    for side in TOPS:
        check_top(side, fields, len(ids), vocab_size)
    check_versions(fields, int(drawn.sum()))
    return fields
