"""Service: what the tracker needs of W&B and MLflow. Both are told what a run is, get its rows, and are asked which rows they
have. Tests have a service of their own in memory."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Protocol

from .run_events import RunEvents, State
from .run_files import RunFacts
from .sent_steps import Begun, Row


class ServiceError(Exception):
    """The service did not take something: no network, a wrong key, a full disk. It is worth another try."""


class MissingPackage(Exception):
    """The service's package is not installed; the message has the command that installs it."""


@dataclasses.dataclass(frozen=True)
class SentRow:
    row: Row
    values: dict[str, float]


class Service(Protocol):
    """After a ServiceError from any method, `begin` starts over. Every method may be repeated."""

    def begin(self, facts: RunFacts, wanted: Begun) -> Begun:
        """Goes on with the run that `wanted` names, or with one that this attempt began and could not note, or begins one.
        Returns `wanted` with the id and the start of that run."""

    def has(self, row: Row) -> bool | None:
        """Whether the row arrived before `begin`; None where the service cannot tell, and the journal is believed."""

    def send(self, rows: Sequence[SentRow]) -> None:
        """Rows in order."""

    def show(self, events: RunEvents) -> None:
        """How often each kind of event came."""

    def end(self, facts: RunFacts, events: RunEvents, state: State, report: pathlib.Path | None) -> None:
        """Hands in what is left and waits until it has arrived. `state` RUNNING: the tracker ends before the run does."""

    def place(self) -> str:
        """Where the rows go, as the end of a sentence: "to ..."."""
