"""The highest step that offline runs of W&B have on disk.

wandb hands rows to a process of its own, which writes them to a file some time later; what was handed over and not written
is lost when both are killed. So a tracker that starts again asks the files. They are logs in LevelDB's format
(https://github.com/google/leveldb/blob/main/doc/log_format.md) behind a header of seven bytes, each record a `Record`
message of wandb's protobuf. wandb 0.31 has no reader of them in Python any more."""
from __future__ import annotations

import pathlib
import struct
from collections.abc import Iterator

HEADER_BYTES = 7
BLOCK_BYTES = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # kinds of chunks of a record


def records(data: bytes) -> Iterator[bytes]:
    """The whole records of a file; one that was cut short ends them."""
    at, parts = HEADER_BYTES, b""
    while at + 7 <= len(data):
        left_in_block = BLOCK_BYTES - at % BLOCK_BYTES
        if left_in_block < 7:  # the tail of a block is padding
            at += left_in_block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        chunk = data[at + 7:at + 7 + length]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or len(chunk) < length:
            return
        at += 7 + length
        parts = chunk if kind in (FULL, FIRST) else parts + chunk
        if kind in (FULL, LAST):
            yield parts


def last_step(folder: pathlib.Path, run_id: str) -> int | None:
    """Over all files of the run below `folder`, -1 where they hold no row; None without any file."""
    from wandb.proto import wandb_internal_pb2
    files = sorted(folder.glob(f"wandb/*run-*-{run_id}/run-{run_id}.wandb"))
    highest = -1
    for file in files:
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                highest = max(highest, record.history.step.num)
    return highest if files else None
