"""MlflowService: a run in MLflow, through its client: a server, a database file, or a folder.

The metric `step` is the last of each row that is sent, so its history says which rows have arrived whole. A database takes
the same value at the same step and time once; a folder takes it twice, so there the metrics of a row that was cut short are
looked up one by one."""
from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .run_events import COLUMNS, RunEvents, State
from .run_files import RunFacts, flattened
from .sent_steps import Begun, Row
from .service import MissingPackage, SentRow, ServiceError

MAX_METRICS, MAX_ITEMS = 1000, 100  # of one call of log_batch; items are parameters or tags
MAX_VALUE_CHARACTERS = 5000  # of a tag in every kind of store; a parameter may have 6000
MARKER = "step"
RUN_TAG, ATTEMPT_TAG = "tandem.run_id", "tandem.attempt"
STATUS = {State.FINISHED: "FINISHED", State.FAILED: "FAILED", State.STOPPED: "KILLED"}
INSTALL = "pip install 'tandem-rl[mlflow]', or pip install mlflow"


@dataclasses.dataclass(frozen=True)
class MlflowOptions:
    experiment: str
    name: str | None = None  # None: that of the run directory
    tags: tuple[tuple[str, str], ...] = ()
    tracking_uri: str | None = None  # None: MLFLOW_TRACKING_URI, or MLflow's default


def key_of(name: str) -> str:
    """A name with the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name)


class MlflowService:
    def __init__(self, options: MlflowOptions) -> None:
        # The tracker itself tries again, and must hear a stop signal meanwhile.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        try:
            import mlflow
            import mlflow.entities
        except ImportError as error:
            raise MissingPackage(f"the package mlflow is missing ({error}): {INSTALL}") from error
        self._mlflow: Any = mlflow
        self._options = options
        self._client: Any = None
        self._run_id = ""
        self._experiment_id = ""
        self._arrived: set[tuple[int, int]] = set()  # step and time of whole rows
        self._looks_for_parts = False

    def begin(self, facts: RunFacts, wanted: Begun) -> Begun:
        with _errors("does not take the run"):
            self._client = self._mlflow.MlflowClient(tracking_uri=self._options.tracking_uri)
            self._experiment_id = self._find_experiment()
            run = self._find_run(wanted) or self._create_run(facts, wanted)
            self._run_id = run.info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            history = self._client.get_metric_history(self._run_id, MARKER)
            self._arrived = {(metric.step, metric.timestamp) for metric in history}
            scheme = self._uri().partition(":")[0]
            self._looks_for_parts = scheme == "file" or ":" not in self._uri()
            self._put_config(facts)
        return dataclasses.replace(wanted, service_run=self._run_id, started_ms=run.info.start_time)

    def has(self, row: Row) -> bool | None:
        return (row.step, row.time_ms) in self._arrived

    def send(self, rows: Sequence[SentRow]) -> None:
        with _errors("does not take a row"):
            batch: list[Any] = []
            for sent in rows:
                metrics = self._metrics_of(sent)
                if len(batch) + len(metrics) > MAX_METRICS:
                    self._send_batch(batch)
                    batch = []
                batch += metrics
            self._send_batch(batch)

    def show(self, events: RunEvents) -> None:
        with _errors("does not take the events"):
            self._put_tags({key_of(f"events.{kind}"): str(count) for kind, count in events.counts.items()})

    def end(self, facts: RunFacts, events: RunEvents, state: State, report: pathlib.Path | None) -> None:
        with _errors("did not take the end of the run"):
            self._put_config(facts)
            # The form of MLflow's own tables, written as a whole so that it can be repeated.
            self._client.log_dict(self._run_id, {"columns": list(COLUMNS), "data": [list(row) for row in events.rows]},
                                  "events.json")
            if report is not None:
                self._client.log_artifact(self._run_id, str(report))
            self._client.set_tag(self._run_id, "tandem.state", state.value)
            if state in STATUS:
                self._client.set_terminated(self._run_id, STATUS[state])

    def place(self) -> str:
        return f"to run {self._run_id} of experiment {self._options.experiment} at {self._uri()}"

    def _uri(self) -> str:
        return str(self._options.tracking_uri or self._mlflow.get_tracking_uri())

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._options.experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self._options.experiment))

    def _find_run(self, wanted: Begun) -> Any | None:
        """By its tags, which a run has from the moment it exists: also one that the journal does not name."""
        found = self._client.search_runs([self._experiment_id], f"tags.`{RUN_TAG}` = '{wanted.run_id}' and "
                                                                f"tags.`{ATTEMPT_TAG}` = '{wanted.attempt}'")
        named = [run for run in found if run.info.run_id == wanted.service_run]
        return next(iter(named or found), None)

    def _create_run(self, facts: RunFacts, wanted: Begun) -> Any:
        tags = {**dict(self._options.tags), RUN_TAG: wanted.run_id, ATTEMPT_TAG: str(wanted.attempt)}
        return self._client.create_run(self._experiment_id, start_time=wanted.started_ms, tags=tags,
                                       run_name=self._options.name or facts.name)

    def _put_config(self, facts: RunFacts) -> None:
        """Options are parameters, which MLflow does not change: one that a resumed run has changed becomes a tag
        `changed.NAME`. The facts of run.json are tags, for a resumed run writes them anew."""
        values = {key_of(name): str(value)[:MAX_VALUE_CHARACTERS] for name, value in flattened(facts.config)}
        there = self._client.get_run(self._run_id).data.params
        params = [self._mlflow.entities.Param(name, value) for name, value in values.items() if name not in there]
        tags = {f"changed.{name}": value for name, value in values.items() if there.get(name, value) != value}
        tags.update((key_of(name), str(value)[:MAX_VALUE_CHARACTERS]) for name, value in flattened({"run": facts.card}))
        for first in range(0, len(params), MAX_ITEMS):
            self._client.log_batch(self._run_id, params=params[first:first + MAX_ITEMS])
        self._put_tags(tags)

    def _put_tags(self, tags: dict[str, str]) -> None:
        entities = [self._mlflow.entities.RunTag(name, value) for name, value in tags.items()]
        for first in range(0, len(entities), MAX_ITEMS):
            self._client.log_batch(self._run_id, tags=entities[first:first + MAX_ITEMS])

    def _metrics_of(self, sent: SentRow) -> list[Any]:
        names = [name for name in sent.values if name != MARKER] + [MARKER]
        metrics = [self._mlflow.entities.Metric(key_of(name), sent.values[name], sent.row.time_ms, sent.row.step)
                   for name in names]
        if self._looks_for_parts:  # only the first row after a start can have arrived in parts
            metrics = [metric for metric in metrics if not self._is_there(metric)]
            self._looks_for_parts = False
        return metrics

    def _is_there(self, metric: Any) -> bool:
        return any((there.step, there.timestamp) == (metric.step, metric.timestamp)
                   for there in self._client.get_metric_history(self._run_id, metric.key))

    def _send_batch(self, metrics: list[Any]) -> None:
        for first in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first:first + MAX_METRICS])


class _errors:
    """Everything that MLflow raises becomes a ServiceError: errors of its own, of requests, of a database."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            first = str(error).strip().partition("\n")[0]
            raise ServiceError(f"MLflow {self._what}: {type(error).__name__}: {first}") from error
