"""What all exporters share: rows of records out of padded batches, files that grow, and the command line."""
from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from tandem_rl.fields import RecordsError
from tandem_rl.header import check_header
from tandem_rl.writer import checked, write_json_lines, write_records


def header_for(writer: str, fields: Mapping[str, str], behaviour: Mapping[str, Any], proximal: Mapping[str, Any],
               model: Optional[str] = None) -> dict[str, Any]:
    """A header that says of which field of the framework each column is."""
    return {"model": model, "created_by": f"tandem_rl.export.{writer}", "behaviour": dict(behaviour),
            "proximal": {"policy": "proximal", **proximal},
            "columns": {column: {"from": field, "transform": "none"} for column, field in fields.items()}}


def array(values: Any) -> NDArray[Any]:
    """A tensor of any device and type, or a list, as numpy has it. bfloat16 becomes float32, which is exact."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.is_floating_point() else values)
    return np.asarray(values)


def member(data: Any, name: str, default: Any) -> Any:
    """An attribute of a framework's object, or the entry of the plain dict that stands in its place."""
    return data.get(name, default) if isinstance(data, dict) and name in data else getattr(data, name, default)


def lines_of(batch: Any, needed: Iterable[str], wanted: Iterable[str]) -> dict[str, list[NDArray[Any]]]:
    """The lines of a batch's columns, which are tensors (also nested ones) or lists. A dict, a TensorDict and the like will do."""
    needed = list(needed)
    expected = f"expected a dict of tensors or lists with {', '.join(needed)}, found"
    if not hasattr(batch, "keys"):
        raise RecordsError(f"{expected} {type(batch).__name__}")
    names = list(batch.keys())
    given = {name: batch[name] for name in [*needed, *wanted] if name in names and batch[name] is not None}
    missing = [name for name in needed if name not in given]
    if missing:
        raise RecordsError(f"{expected} no {', '.join(missing)} among {', '.join(map(str, names)) or 'no fields at all'}")
    return {name: [array(line) for line in (values.unbind() if hasattr(values, "unbind") else values)]
            for name, values in given.items()}


def padded_row(ids: Any, attention: Optional[Any], drawn: Any, /, **fields: Any) -> dict[str, Any]:
    """A row out of one line of a padded batch. S places, of which the last R are those of the response.

    `ids` and `attention` are [S], and a token stands where attention is 1 (None: everywhere). `drawn` and the per-token
    fields, which are those that are arrays or tensors of one dimension, are [R]: element r is about the token at place
    S - R + r. Values are kept where `drawn` is 1: batches hold a filler elsewhere. A field that is None is left out.
    """
    ids, drawn = array(ids), array(drawn).astype(bool)
    stands = np.ones(len(ids), bool) if attention is None else array(attention).astype(bool)
    start = len(ids) - len(drawn)
    is_drawn = np.concatenate([np.zeros(start, bool), drawn]) & stands
    row: dict[str, Any] = {"token_ids": ids[stands], "loss_mask": is_drawn[stands].astype(int)}
    for name, value in fields.items():
        if getattr(value, "ndim", 0) == 1:
            full = np.full(len(ids), np.nan, np.float32)
            full[start:] = array(value)
            row[name] = np.where(is_drawn, full, np.float32(np.nan))[stands]
        elif value is not None:
            row[name] = value.item() if hasattr(value, "item") else value
    return row


def last(values: Optional[Any], count: int) -> Optional[NDArray[Any]]:
    """The last `count` elements, as an array; None for None."""
    return None if values is None else array(values)[-count:] if count else np.empty(0)


def version_spans(versions: Any) -> list[list[int]]:
    """[version, number of tokens] of the runs of equal versions."""
    return [[int(version), len(list(run))] for version, run in itertools.groupby(array(versions).tolist())]


def append_rows(path: str, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows to a JSON lines file, which it begins with the header where there is none. Rows without drawn tokens are
    left out; all others are checked before any is written."""
    given = [row for row in rows if np.any(row["loss_mask"])]
    lines = list(checked(pathlib.Path(path), header, given))
    if not pathlib.Path(path).exists():
        with open(path, "xb") as file:
            write_json_lines(file, check_header({"tandem_capture": 3, **header}), [])
    with open(path, "ab") as file:
        file.write(b"".join(json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n" for line in lines))


def run(rows_of: Callable[[str], Iterable[Mapping[str, Any]]], header: Mapping[str, Any], what: str) -> None:
    """The command line of an exporter: python -m tandem_rl.export.NAME [--model M] FILE.. OUT."""
    folder = str(pathlib.Path(__file__).parent)
    sys.path = [entry for entry in sys.path if entry != folder]  # a script's own folder has a verl.py, which is not verl
    parser = argparse.ArgumentParser(description=f"Converts {what} to records (.jsonl, or .parquet with pyarrow).")
    parser.add_argument("--model", help="Hub name or directory of the weights, for the header")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("out", metavar="OUT")
    arguments = parser.parse_args()
    named = {**header, **({"model": arguments.model} if arguments.model else {})}

    def rows() -> Iterator[Mapping[str, Any]]:
        for path in arguments.files:
            try:
                yield from rows_of(path)
            except RecordsError as error:
                sys.exit(f"{path}: {error}; this exporter reads {what}")
    write_records(arguments.out, named, rows())
    print(f"wrote {arguments.out}: next `tandem drift check {arguments.out}`")
