"""Tracker: follows one run directory and sends what is new to one service, until the run has ended or it is told to stop.

A session is one connection: it asks the service which rows it has, reads metrics.jsonl from the beginning, and sends what is
missing, then what comes (session.py). After an error of the service the next session does the same. So a restart of the
tracker, a lost network, and a row that was sent and not noted are one case and not three."""
from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from .run_files import NoRun, RunFacts, RunFiles
from .sent_steps import Begun, Journal
from .service import Service, ServiceError
from .session import AnotherRun, Cut, Session

MAX_BACKOFF_SECONDS = 60
TRIES_ONCE = 3  # with `once`


@dataclasses.dataclass(frozen=True)
class TrackerOptions:
    once: bool = False  # end after what is there
    sends_report: bool = False
    new_run_after_cut: bool = False  # steps that are made again go to a new run of the service
    poll_seconds: float = 2
    wait_seconds: float = 900  # for the run to begin
    end_seconds: float = 90  # after the last line of a run that failed or was stopped


class Tracker:
    """`wait` waits that many seconds and returns True as soon as the tracker is to stop; it may be asked with 0."""

    def __init__(self, run: RunFiles, service: Service, journal: Journal, options: TrackerOptions,
                 wait: Callable[[float], bool], say: Callable[[str], None]) -> None:
        self._run, self._service, self._journal = run, service, journal
        self._options, self._wait, self._say = options, wait, say
        self._failures = 0  # in a row
        self._told = ""  # the failure that was told last

    def follow(self) -> bool:
        """True once everything that the run wrote is sent, or nothing was there before it was told to stop; False where
        the service failed to the end. Raises NoRun."""
        while True:
            facts = self._wait_for_run()
            if facts is None:
                return True
            begun_at = time.monotonic()
            try:
                if self._follow_run(facts):
                    return True
            except ServiceError as error:
                if time.monotonic() - begun_at > MAX_BACKOFF_SECONDS:
                    self._failures, self._told = 0, ""  # it worked for a while
                if not self._try_again(error):
                    return False

    def _wait_for_run(self) -> RunFacts | None:
        """None where it was told to stop first."""
        give_up = time.monotonic() + (0 if self._options.once else self._options.wait_seconds)
        said = False
        while True:
            may_come = time.monotonic() < give_up
            if self._run.path.exists() or not may_come:
                self._run.check()
            facts = self._run.read()
            if facts is not None:
                return facts
            if not may_come:
                raise NoRun(f"{self._run.path} has no run.json and config.yaml yet: no run has begun there")
            if not said:
                self._say(f"waiting for a run to begin in {self._run.path}")
                said = True
            if self._wait(self._options.poll_seconds):
                return None

    def _follow_run(self, facts: RunFacts) -> bool:
        """True at the end; False where another run, or another run of the service, goes on."""
        begun = self._begin(facts)
        session = Session(self._run, self._service, self._journal, self._say, facts, begun, self._options.new_run_after_cut)
        try:
            self._follow_session(session)
            session.end(self._options.sends_report)
            return True
        except AnotherRun:
            self._say("another run has begun in the directory")
            session.abandon(was_cut=False)
        except Cut:
            session.abandon(was_cut=True)
            self._journal.begin(Begun(facts.run_id, "", begun.attempt + 1, begun.started_ms))
        return False

    def _follow_session(self, session: Session) -> None:
        """Until the run has ended or the tracker is told to stop; then everything that was there is sent."""
        while True:
            stops = self._options.once or self._wait(0)
            session.take_news()
            if stops or session.ended(self._options.end_seconds):
                return
            self._wait(self._options.poll_seconds)

    def _begin(self, facts: RunFacts) -> Begun:
        """Connects to the service's run, and drops from the journal what did not arrive there."""
        noted = self._journal.begun
        if noted is None or noted.run_id != facts.run_id:
            noted = Begun(facts.run_id, "", 0, facts.started_ms)
        begun = self._service.begin(facts, noted)
        if begun != self._journal.begun:
            self._journal.begin(begun)
        rows = self._journal.sent.rows
        kept = next((number for number, row in enumerate(rows) if self._service.has(row) is False), len(rows))
        if kept < len(rows):
            self._say(f"{len(rows) - kept} lines of metrics had not arrived and are sent again")
            self._journal.forget(kept)
        self._say(f"{facts.run_id} goes {self._service.place()}")
        return begun

    def _try_again(self, error: ServiceError) -> bool:
        self._failures += 1
        if str(error) != self._told:
            self._told = str(error)
            self._say(f"{error} (it is tried again, and what was not taken is kept)")
        if self._options.once and self._failures >= TRIES_ONCE:
            return False
        return not self._wait(min(MAX_BACKOFF_SECONDS, 2.0 ** (self._failures - 1)))
