"""RunEvents: what events.jsonl says of a run: how often each kind came, the newest lines as a table, and whether the run has
ended. Pure."""
from __future__ import annotations

import collections
import enum
import json
from typing import Any

MAX_ROWS = 10_000  # the newest events that a service gets as a table
COLUMNS = ("step", "time_s", "kind", "message", "more")


class State(enum.Enum):
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


STATES = {"run_started": State.RUNNING, "resumed": State.RUNNING, "started_over": State.RUNNING,
          "run_finished": State.FINISHED, "run_stopped": State.STOPPED, "run_failed": State.FAILED}
FINISHED_SECONDS = 10  # within which `tandem run` writes its report


class RunEvents:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.rows: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=MAX_ROWS)
        self.state = State.RUNNING

    def add(self, line: bytes) -> None:
        """A line that is no event is one that a crash cut short, and is passed over."""
        try:
            event = json.loads(line)
            kind = str(event["kind"])
        except (ValueError, KeyError, TypeError):
            return
        more = {name: value for name, value in event.items() if name not in COLUMNS}
        self.counts[kind] += 1
        self.rows.append((event.get("step"), event.get("time_s"), kind, str(event.get("message", "")),
                          json.dumps(more) if more else ""))
        self.state = STATES.get(kind, self.state)


def has_ended(state: State, seconds_without_news: float, report_is_written: bool, patience_seconds: float) -> bool:
    """Whether nothing more will come. A run that failed or was stopped may be started again by its launcher, so its end is
    believed once the report is there or after `patience_seconds`."""
    if state is State.RUNNING:
        return False
    patience = min(FINISHED_SECONDS, patience_seconds) if state is State.FINISHED else patience_seconds
    return report_is_written or seconds_without_news >= patience
