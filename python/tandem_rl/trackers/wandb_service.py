"""WandbService: a run in Weights & Biases. Modes (online, offline, disabled), keys and proxies are those of the package wandb.

Every row is logged at W&B's own step `Row.number`, which only rises; `step` of the line is the x-axis of all charts. W&B
drops a row at or below the highest step it has, and says that step when a run is resumed (`starting_step`), so nothing is
doubled and nothing that had not arrived is taken for sent."""
from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from .run_events import COLUMNS, RunEvents, State
from .run_files import RunFacts
from .sent_steps import Begun, Row
from .service import MissingPackage, SentRow, ServiceError
from .wandb_files import last_step

INIT_SECONDS = 30  # for the service to take a run, without WANDB_INIT_TIMEOUT
DISABLED = "disabled"  # in place of an id: W&B has nothing of what the journal notes
FINISH_SECONDS = 300  # for everything to have arrived; after that the next start asks what has


@dataclasses.dataclass(frozen=True)
class WandbOptions:
    project: str
    folder: pathlib.Path  # of wandb's own files
    entity: str | None = None
    name: str | None = None  # None: that of the run directory
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: str | None = None  # None: WANDB_MODE, or online


def id_of(run_id: str, attempt: int) -> str:
    """W&B's id of a run: its own, with the characters that W&B takes."""
    safe = re.sub(r"[^\w.-]", "-", run_id)[:120]
    return f"{safe}-{attempt}" if attempt else safe


class WandbService:
    def __init__(self, options: WandbOptions) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingPackage(f"the package wandb is missing ({error}): pip install 'tandem-rl[wandb]', or pip install wandb") from error
        self._wandb: Any = wandb
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # wandb's own numbers, which may be lost
        self._options = options
        self._run: Any = None
        self._last: int | None = None  # highest step that had arrived at `begin`; None: unknown

    def begin(self, facts: RunFacts, wanted: Begun) -> Begun:
        self._drop_run()
        options = self._options
        service_run = wanted.service_run
        if service_run in ("", DISABLED):
            service_run = id_of(facts.run_id, wanted.attempt)
        options.folder.mkdir(parents=True, exist_ok=True)
        on_disk = last_step(options.folder, service_run)
        seconds = float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS))
        settings = self._wandb.Settings(console="off", silent=True, init_timeout=seconds,
                                        finish_timeout=FINISH_SECONDS, finish_timeout_raises=True,
                                        x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
                                        disable_git=True, disable_code=True)  # all of that would be of the tracker's process
        try:
            self._run = self._wandb.init(
                project=options.project, entity=options.entity, id=service_run, name=options.name or facts.name,
                group=options.group, tags=options.tags or None, mode=options.mode, dir=str(options.folder), resume="allow",
                job_type="train", settings=settings)
        except Exception as error:  # wandb raises errors of its own, of requests and of the system
            self._wandb.teardown()  # its process keeps the id of a run that it could not begin
            raise ServiceError(f"W&B does not take the run: {_first_line(error)}") from error
        if self._run.disabled:
            return dataclasses.replace(wanted, service_run=DISABLED)
        if self._run.offline:
            self._last = on_disk
        else:
            self._last = int(self._run.starting_step) - 1
        self._run.define_metric("*", step_metric="step")
        self._put_config(facts)
        return dataclasses.replace(wanted, service_run=service_run)

    def has(self, row: Row) -> bool | None:
        return None if self._last is None else row.number <= self._last

    def send(self, rows: Sequence[SentRow]) -> None:
        try:
            for sent in rows:
                self._run.log(sent.values, step=sent.row.number, commit=True)
        except Exception as error:
            raise ServiceError(f"W&B does not take a row: {_first_line(error)}") from error

    def show(self, events: RunEvents) -> None:
        try:
            self._run.summary.update({f"events/{kind}": count for kind, count in events.counts.items()})
        except Exception as error:
            raise ServiceError(f"W&B does not take the events: {_first_line(error)}") from error

    def end(self, facts: RunFacts, events: RunEvents, state: State, report: pathlib.Path | None) -> None:
        try:
            self._put_config(facts)
            table = self._wandb.Table(columns=list(COLUMNS), data=[list(map(_cell, row)) for row in events.rows])
            self._run.summary.update({"events": table, "run/state": state.value})
            if report is not None:
                artifact = self._wandb.Artifact(f"report-{self._run.id}", type="report")
                artifact.add_file(str(report), name="report.html")
                self._run.log_artifact(artifact)
            self._run.finish(exit_code=1 if state is State.FAILED else 0)
        except Exception as error:
            raise ServiceError(f"W&B did not take the end of the run: {_first_line(error)}") from error
        self._run = None

    def place(self) -> str:
        if self._run is None or self._run.disabled:
            return "nowhere: W&B is disabled"
        if self._run.offline:
            folder = pathlib.Path(self._run.dir).parent.parent
            return f"to {folder}; to upload it: wandb sync {folder}/offline-run-*-{self._run.id}"
        return f"to {self._run.url}"

    def _put_config(self, facts: RunFacts) -> None:
        self._run.config.update({**facts.config, "run": facts.card}, allow_val_change=True)

    def _drop_run(self) -> None:
        """Of a session that failed: what it handed over is let through, unless wandb's process is gone. In any case W&B is
        asked for its rows at the next start."""
        if self._run is not None:
            try:
                self._run.finish(exit_code=1)
            except Exception:
                self._wandb.teardown()
            self._run = None


def _cell(value: Any) -> str:
    """A column of a table has one type; what an event lacks is empty."""
    return "" if value is None else str(value)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
