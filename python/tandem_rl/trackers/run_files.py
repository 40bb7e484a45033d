"""What a tracker reads of a run directory (docs/run_directory.md), apart from the lines of metrics.jsonl and events.jsonl.
The file `owner` holds a secret and is never opened."""
from __future__ import annotations

import dataclasses
import datetime
import json
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

# Values of options that may hold a secret: headers of HTTP requests ("Authorization: Bearer ..."), and names like these.
HEADERS = re.compile(r"(^|\.)headers$")
SECRET_NAME = re.compile(r"(^|[._])(api_key|password|secret|token)$")
USER_IN_URL = re.compile(r"(://)[^/@\s]+@")
LEFT_OUT = "(left out)"
# What a run directory may hold before its first event, or while `--clean` deletes it.
OTHER_FILES = {"captures", "checkpoints", "ledger.sqlite", "logs", "owner", "probe", "restarts.jsonl", "rollouts", "tensorboard"}


class NoRun(Exception):
    """The directory holds no run. The message says what is there."""


@dataclasses.dataclass(frozen=True)
class RunFacts:
    run_id: str
    name: str  # of the directory
    started_ms: int  # since 1970
    card: dict[str, Any]  # run.json
    config: dict[str, Any]  # config.yaml, without secrets


def without_secrets(value: Any, name: str = "") -> Any:
    """`value` with the contents of options that may hold a secret replaced. `name` is the option's dotted name. Pure."""
    if isinstance(value, dict):
        return {key: without_secrets(inner, f"{name}.{key}") for key, inner in value.items()}
    if HEADERS.search(name) and isinstance(value, list):
        return [f"{str(header).partition(':')[0]}: {LEFT_OUT}" for header in value]
    if SECRET_NAME.search(name) and isinstance(value, str) and value:
        return LEFT_OUT
    if isinstance(value, list):
        return [without_secrets(inner, name) for inner in value]
    return USER_IN_URL.sub(r"\1", value) if isinstance(value, str) else value


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every leaf. Elements of a list of plain values stay together, as JSON. Pure."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value):
            yield from flattened(inner, f"{name}.{number}")
    else:
        yield name, json.dumps(value) if isinstance(value, list) else value


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a line of metrics.jsonl under their names. Flags count as 0 and 1; what is null was not finite
    or not measured; objects and lists (histograms, parts by bucket) are no scalars. Pure."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in line.items()
            if isinstance(value, (int, float)) and math.isfinite(value)}


class RunFiles:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raises NoRun where the directory is not there, or holds something else than a run or the start of one."""
        if not self.path.is_dir():
            raise NoRun(f"{self.path} is no directory: name the run directory, OUT/NAME of trainer.run in the run file")
        names = {entry.name for entry in self.path.iterdir()}
        if names & {"run.json", "config.yaml", "events.jsonl", "metrics.jsonl"}:
            return
        if names - OTHER_FILES:
            raise NoRun(f"{self.path} is no run directory: none of run.json, config.yaml, events.jsonl and metrics.jsonl is there")

    def run_id(self) -> str | None:
        """None before run.json is written."""
        try:
            card = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return str(card["run_id"])

    def read(self) -> RunFacts | None:
        """None before run.json and config.yaml are written."""
        import yaml  # both services' packages bring it
        try:
            card = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
            config = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            return None
        started = datetime.datetime.fromisoformat(card["started_at"].replace("Z", "+00:00"))
        return RunFacts(run_id=str(card["run_id"]), name=self.path.resolve().name, card=card,
                        started_ms=round(started.timestamp() * 1000), config=without_secrets(config))

    def report_is_newer_than_events(self) -> bool:
        """`tandem run` writes the report as its last act, after all processes have ended."""
        try:
            return (self.path / "report.html").stat().st_mtime >= (self.path / "events.jsonl").stat().st_mtime
        except FileNotFoundError:
            return False
