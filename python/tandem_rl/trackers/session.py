"""Session: what one connection to a service has read of a run and sent so far."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from .line_follower import LineFollower
from .run_events import RunEvents, State, has_ended
from .run_files import RunFacts, RunFiles, scalars
from .sent_steps import Begun, Journal, digest_of
from .service import SentRow, Service

BATCH_LINES = 50


class Cut(Exception):
    """Lines that were sent are no longer in the file, and a new run of the service is to take them."""


class AnotherRun(Exception):
    """The directory holds another run than at the beginning of the session."""


class Session:
    """Errors of the service go through every method, and end the session."""

    def __init__(self, run: RunFiles, service: Service, journal: Journal, say: Callable[[str], None], facts: RunFacts,
                 begun: Begun, ends_at_cut: bool) -> None:
        self._run, self._service, self._journal, self._say = run, service, journal, say
        self._facts, self._started_ms, self._ends_at_cut = facts, begun.started_ms, ends_at_cut
        self._metrics_file = LineFollower(run.path / "metrics.jsonl")
        self._events_file = LineFollower(run.path / "events.jsonl")
        self._events = RunEvents()
        self._place = 0  # the lines read so far are so many rows of the journal
        self._news_at = time.monotonic()

    def take_news(self) -> None:
        """Sends what the run has written since the last call. Raises AnotherRun, and Cut with `ends_at_cut`."""
        run_id = self._run.run_id()
        if run_id is None:  # `--clean` is deleting the run, and the next one has not begun
            return
        if run_id != self._facts.run_id:
            raise AnotherRun
        is_new = self._take_events()
        while self._take_metrics():
            is_new = True
        if is_new:
            self._news_at = time.monotonic()

    def ended(self, end_seconds: float) -> bool:
        return has_ended(self._events.state, time.monotonic() - self._news_at, self._run.report_is_newer_than_events(),
                         end_seconds)

    def end(self, sends_report: bool) -> None:
        facts = self._run.read()  # `tandem run` completes config.yaml at the end
        report = self._run.path / "report.html"
        place, state = self._service.place(), self._events.state
        self._service.end(facts if facts and facts.run_id == self._facts.run_id else self._facts, self._events, state,
                          report if sends_report and report.is_file() else None)
        rows = self._journal.sent.rows
        last = f", the last of step {rows[-1].step}" if rows else ""
        self._say(f"the run is {state.value}; {len(rows)} lines of metrics were sent{last}, {place}")

    def abandon(self, was_cut: bool) -> None:
        """Ends the service's run, of which nothing more will come: another run, or another run of the service, goes on."""
        was_stopped = was_cut or self._events.state is State.RUNNING
        self._service.end(self._facts, self._events, State.STOPPED if was_stopped else self._events.state, None)

    def _take_events(self) -> bool:
        is_new = False
        while True:
            news = self._events_file.poll()
            if news.rewritten:
                self._events.clear()
            for line in news.lines:
                self._events.add(line)
            is_new = is_new or bool(news.lines)
            if news.at_end:
                break
        if is_new:
            self._service.show(self._events)
        return is_new

    def _take_metrics(self) -> bool:
        """Reads and sends one batch; True where there was a line."""
        news = self._metrics_file.poll(BATCH_LINES)
        if news.rewritten:
            self._place = 0
        batch: list[SentRow] = []
        for line in news.lines:
            self._take_line(line, batch)
        unsent = [sent for sent in batch if self._service.has(sent.row) is not True]
        if unsent:
            self._service.send(unsent)
        if batch:
            self._journal.add([sent.row for sent in batch])
            self._place += len(batch)
        if news.at_end and self._place < len(self._journal.sent.rows):
            self._cut()
        return bool(news.lines)

    def _take_line(self, line: bytes, batch: list[SentRow]) -> None:
        """Passes over a line that was sent, and one that is none; appends another one to `batch`."""
        sent = self._journal.sent
        if self._place < len(sent.rows):  # without parsing it: a long run is read again at each start
            if sent.rows[self._place].digest == digest_of(line):
                self._place += 1
                return
        values = _parsed(line)
        if values is None:
            return
        if self._place < len(sent.rows):
            self._cut()
        row = sent.next_row(line, values["step"], self._time_ms(values), batch[-1].row if batch else None)
        batch.append(SentRow(row, scalars(values)))

    def _time_ms(self, values: dict[str, Any]) -> int:
        seconds = values.get("time_s")
        return self._started_ms + (round(1000 * seconds) if isinstance(seconds, (int, float)) else 0)

    def _cut(self) -> None:
        """The run was cut back to a checkpoint, and the steps behind it are made again."""
        if self._run.run_id() != self._facts.run_id:
            raise AnotherRun
        rows = self._journal.sent.rows
        self._say(f"the run went back to step {rows[self._place - 1].step if self._place else 0}: "
                  f"{len(rows) - self._place} lines that were sent are made again")
        if self._ends_at_cut:
            raise Cut
        self._journal.take_back(self._place)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None for one that a crash cut short, which the trainer deletes when it resumes."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None
