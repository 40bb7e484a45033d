"""SentSteps: which lines of metrics.jsonl a service has, and the journal file that keeps it between starts.

A row is one line as the service knows it. Services only append, so each row has a number and a time that are above those of
all rows before, also when the run was cut back to a checkpoint and makes a step again: the later row is then the one that
the service shows as the step's last value. Both follow from the journal alone, so a row that is sent twice, because the
tracker died before it noted it, is the same row."""
from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
from typing import Any

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Row:
    step: int
    digest: str  # of the line's bytes
    number: int  # W&B's own step: the train step, or more after a cut
    time_ms: int  # since 1970

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def digest_of(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=8).hexdigest()


class SentSteps:
    """The rows of the lines that are in the file now, in its order, and the highest number and time ever used. Pure."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._number = -1
        self._time_ms = 0

    def next_row(self, line: bytes, step: int, time_ms: int, after: Row | None) -> Row:
        """The row of the line behind `after`, or behind all that were added."""
        number, time_before = (after.number, after.time_ms) if after else (self._number, self._time_ms)
        return Row(step, digest_of(line), max(step, number + 1), max(time_ms, time_before + 1))

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._number, self._time_ms = max(row.number, self._number), max(row.time_ms, self._time_ms)

    def take_back(self, kept: int) -> None:
        """The file holds only the first `kept` of these lines now; the service has the others all the same."""
        del self.rows[kept:]

    def forget(self, kept: int) -> None:
        """The service has only the first `kept` rows: the others are made again, with the same numbers and times."""
        lost = self.rows[kept:]
        del self.rows[kept:]
        if lost:
            self._number, self._time_ms = lost[0].number - 1, lost[0].time_ms - 1


@dataclasses.dataclass(frozen=True)
class Begun:
    """Where the rows of a run go."""
    run_id: str  # the run's own id, of run.json
    service_run: str  # W&B's or MLflow's id; empty: none yet
    attempt: int  # counts the runs of the service that were begun for this one run
    started_ms: int  # since 1970, of the start that time_s counts from; run.json has that of the last resume


class JournalInUse(Exception):
    """Another process has the journal."""


class Journal:
    """A file of JSON lines: the Begun, then a line per row or change, each written before the next row is sent. A line cut
    short by a crash is dropped when the file is opened. One process has it at a time, until it ends."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.sent = SentSteps()
        self.begun: Begun | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = open(path.with_suffix(".lock"), "a", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise JournalInUse(f"another tracker follows this run already, and notes what it sent in {path}") from None
        if path.exists():
            self._read()

    def close(self) -> None:
        self._lock.close()

    def begin(self, begun: Begun) -> None:
        """Starts anew for another run, in one step: a crash leaves the journal before or an empty one of `begun`."""
        self.sent, self.begun = SentSteps(), begun
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"schema": SCHEMA, **dataclasses.asdict(begun)}) + "\n", encoding="utf-8")
        os.replace(partial, self.path)

    def add(self, rows: list[Row]) -> None:
        self._append([row.to_json() for row in rows])
        for row in rows:
            self.sent.add(row)

    def take_back(self, kept: int) -> None:
        self._append([json.dumps({"taken_back_to": kept})])
        self.sent.take_back(kept)

    def forget(self, kept: int) -> None:
        self._append([json.dumps({"forgotten_to": kept})])
        self.sent.forget(kept)

    def _append(self, lines: list[str]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        text = self.path.read_bytes()
        whole = text[:text.rfind(b"\n") + 1]
        records = [json.loads(line) for line in whole.splitlines()]
        if len(whole) != len(text):
            with open(self.path, "r+b") as file:
                file.truncate(len(whole))
        if not records or records[0].get("schema") != SCHEMA:
            raise ValueError(f"{self.path} is not a journal of this program (schema {SCHEMA}): delete it")
        self.begun = Begun(**{field.name: records[0][field.name] for field in dataclasses.fields(Begun)})
        for record in records[1:]:
            self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        if "taken_back_to" in record:
            self.sent.take_back(record["taken_back_to"])
        elif "forgotten_to" in record:
            self.sent.forget(record["forgotten_to"])
        else:
            self.sent.add(Row(**record))
