"""The two forms of capture format 3, JSON lines and Parquet: rows out of a file, one at a time."""
from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any, Union

from .fields import IMPORT_ADVICE, RecordsError, found
from .header import check_header

Path = Union[str, "pathlib.Path"]
Rows = Iterator[tuple[str, dict[str, Any]]]  # the place for messages, and the fields
METADATA_KEY = "tandem_capture"
# Kinds of files that people have in place of records.
KINDS = {
    b"\x1f\x8b": "is compressed with gzip: unpack it first (gunzip), or write Parquet",
    b"\x28\xb5\x2f\xfd": "is compressed with Zstandard: unpack it first (unzstd), or write Parquet",
    b"BZh": "is compressed with bzip2: unpack it first (bunzip2), or write Parquet",
    b"PK\x03\x04": "is a zip archive, such as torch.save and numpy.savez write: `tandem drift import` says how to get "
                   "records out of it",
    b"\x80": "is a Python pickle: `tandem drift import` says how to get records out of it",
    b"\xef\xbb\xbf": 'begins with a byte order mark: write it as UTF-8 without one (in Python encoding="utf-8", not '
                     '"utf-8-sig")',
    b"\xff\xfe": "is text in UTF-16: write it as UTF-8",
    b"\xfe\xff": "is text in UTF-16: write it as UTF-8",
    b"[": "is a JSON array: records are JSON lines, the header first and then one object a line (docs/records.md)"}


def form_of(path: Path) -> str:
    """"parquet" or "json", told from the first bytes."""
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(b"PAR1"):
        return "parquet"
    for magic, advice in KINDS.items():
        if start.startswith(magic):
            raise RecordsError(f"{path}: {advice}")
    if not start:
        raise RecordsError(f"{path}: expected a header line and rows (docs/records.md), found an empty file")
    return "json"


class RowParser:
    """Parses lines, and finds fields that stand twice in a row."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, Any]] = []  # of the object that ended last, which is the row itself
        self.decoder = json.JSONDecoder(object_pairs_hook=self.keep)

    def keep(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.pairs = pairs
        return dict(pairs)

    def parse(self, line: str) -> dict[str, Any]:
        try:
            row = self.decoder.decode(line)
        except json.JSONDecodeError as error:
            shown = line[error.pos:error.pos + 40].strip() or "the end (is the file cut short?)"
            raise RecordsError(f"expected JSON, found {shown} at byte {error.pos + 1} ({error.msg})") from None
        except RecursionError:
            raise RecordsError("expected an object, nested at most 100 deep, found a deeper one") from None
        if not isinstance(row, dict):
            raise RecordsError(f"expected a JSON object, one row a line, found {found(row)} at byte 1")
        if len(row) != len(self.pairs):
            names = [name for name, _ in self.pairs]
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise RecordsError(f"{twice}: expected once in a row, found twice")
        return row


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Place and text of every line that is not empty."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip(b" \t\r\n"):
                continue
            try:
                yield f"{path}:{number}", line.decode("utf-8").strip(" \t\r\n")
            except UnicodeDecodeError as error:
                raise RecordsError(f"{path}:{number}: expected text in UTF-8, found another at byte {error.start + 1}") from None


def json_rows(path: Path) -> tuple[dict[str, Any], Rows]:
    """The header, and the rows in a stream."""
    lines = lines_of(path)
    first = next(lines, None)
    if first is None:
        raise RecordsError(f"{path}: expected a header line and rows, found empty lines only")
    place, line = first
    try:
        header = check_header(json.loads(line))
    except json.JSONDecodeError as error:
        raise RecordsError(f"{place}: expected the header as a JSON object on one line, found {error}") from None
    except RecordsError as error:
        raise RecordsError(f"{place}: {error}") from None

    def rows() -> Rows:
        parser = RowParser()
        for place, line in lines:
            try:
                yield place, parser.parse(line)
            except RecordsError as error:
                raise RecordsError(f"{place}: {error}") from None
    return header, rows()


def parquet_rows(path: Path) -> tuple[dict[str, Any], Rows]:
    """The same of a Parquet file. Needs pyarrow (`pip install tandem-rl[parquet]`)."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    metadata = file.schema_arrow.metadata or {}
    if METADATA_KEY.encode() not in metadata:
        raise RecordsError(f"{path}: expected the header in the key-value metadata under `{METADATA_KEY}` "
                           f"(docs/records.md), found no such key: {IMPORT_ADVICE}")
    try:
        header = check_header(json.loads(metadata[METADATA_KEY.encode()]))
    except json.JSONDecodeError as error:
        raise RecordsError(f"{path}: metadata `{METADATA_KEY}`: expected the header as a JSON object on one line, found "
                           f"{error}") from None
    except RecordsError as error:
        raise RecordsError(f"{path}: metadata `{METADATA_KEY}`: {error}") from None

    def rows() -> Rows:
        number = 0
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield f"{path}: row {number}", row
                number += 1
    return header, rows()
