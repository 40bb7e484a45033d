"""write_records: files of capture format 3, JSON lines and Parquet, row by row."""
from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Union

import numpy as np

from .fields import COLUMNS, FORMAT, RecordsError, row_id_of
from .header import check_header
from .rows import read_row

Path = Union[str, "pathlib.Path"]
NOT_JSON = {math.inf: "Infinity", -math.inf: "-Infinity"}


def plain(value: Any) -> Any:
    """A value of a row as JSON has it. NaN is null in arrays of numpy, and the text "NaN" in lists, as in the format."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f":
            return value.tolist()
        # The shortest digits that give a float32 back, not those of the double that it is.
        as_double = list(map(float, value.astype("U32"))) if value.dtype.itemsize < 8 else value.tolist()
        return [None if one != one else NOT_JSON.get(one, one) for one in as_double]
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (float, np.floating)):
        return "NaN" if value != value else NOT_JSON.get(float(value), float(value))
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def checked(path: Path, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows as they are written. A fault ends them with RecordsError and the place of the row."""
    for number, row in enumerate(rows):
        try:
            read_row(row, header.get("vocab_size"))
        except RecordsError as error:
            raise RecordsError(f"{path}: row {number}{row_id_of(row)}: {error}") from None
        yield {name: plain(value) for name, value in row.items() if value is not None}


def write_json_lines(file: IO[bytes], header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    file.write(json.dumps(header, allow_nan=False, ensure_ascii=False).encode() + b"\n")
    for row in rows:
        file.write(json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def number_of(value: Any) -> Any:
    """The texts that JSON has for numbers that it does not have, as numbers."""
    if isinstance(value, list):
        return [number_of(one) for one in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def write_parquet(file: IO[bytes], header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Needs pyarrow (`pip install tandem-rl[parquet]`). Columns that no row has are null throughout."""
    import pyarrow
    import pyarrow.parquet

    floats, whole = pyarrow.list_(pyarrow.float32()), pyarrow.int64()
    ids = pyarrow.list_(pyarrow.int32())
    types = {"token_ids": ids, "prompt_length": whole, "loss_mask": pyarrow.list_(pyarrow.int8()),
             **dict.fromkeys(COLUMNS, floats),
             **dict.fromkeys(("behaviour_top_ids", "proximal_top_ids"), pyarrow.list_(ids)),
             **dict.fromkeys(("behaviour_top_logprobs", "proximal_top_logprobs"), pyarrow.list_(floats)),
             "version_spans": pyarrow.list_(pyarrow.list_(whole)),
             **dict.fromkeys(("weight_version", "proximal_version", "step"), whole),
             **dict.fromkeys(("group_id", "row_id", "finish_reason", "prompt_text", "completion_text"), pyarrow.string()),
             "stop_token_kept": pyarrow.bool_(), **dict.fromkeys(("reward", "advantage"), pyarrow.float64())}
    schema = pyarrow.schema(list(types.items()), metadata={"tandem_capture": json.dumps(header, allow_nan=False)})
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            if "extra" in row:
                raise RecordsError(f"row {number}: extra: expected in JSON lines only, as Parquet needs one type for all rows")
            numbers = {name: number_of(value) if isinstance(value, list) or name in ("reward", "advantage") else value
                       for name, value in row.items()}
            numbers["group_id"] = None if row.get("group_id") is None else str(row["group_id"])
            batch.append(numbers)
            if len(batch) == 1024:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
                batch = []
        if batch:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def write_records(path: Path, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file of format 3, Parquet where `path` ends with ".parquet" and JSON lines otherwise.

    `rows` may be a generator: one row is held at a time. Values are Python lists or arrays of numpy. The file appears
    whole or not at all. Raises RecordsError where header or rows are not as docs/records.md says.
    """
    path = pathlib.Path(path)
    try:
        header = check_header({"tandem_capture": FORMAT, **header})
    except RecordsError as error:
        raise RecordsError(f"{path}: header: {error}") from None
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write = write_parquet if path.suffix == ".parquet" else write_json_lines
    try:
        with open(unfinished, "wb") as file:
            write(file, header, checked(path, header, rows))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
