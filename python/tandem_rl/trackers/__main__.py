"""The command: python -m tandem_rl.trackers wandb|mlflow RUN (docs/trackers.md)."""
from __future__ import annotations

import argparse
import pathlib
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from .mlflow_service import MlflowOptions, MlflowService
from .run_files import NoRun, RunFiles
from .sent_steps import Journal, JournalInUse
from .service import MissingPackage, Service
from .tracker import Tracker, TrackerOptions
from .wandb_service import WandbOptions, WandbService

# Exit codes are those of the programs (docs/command_line.md): 4 is a service that cannot be reached.
USAGE, SERVICE_LOST, SIGNALLED = 2, 4, 128


def parser() -> argparse.ArgumentParser:
    program = argparse.ArgumentParser(
        prog="python -m tandem_rl.trackers",
        description="Follows a run directory and sends its numbers to Weights & Biases or MLflow.",
        epilog="Started again, it goes on with the same run of the service, and sends what is missing.")
    services = program.add_subparsers(dest="service", required=True)
    wandb = services.add_parser("wandb", help="to Weights & Biases")
    wandb.add_argument("--project", default="tandem", help="project (default: %(default)s)")
    wandb.add_argument("--entity", help="user or team (default: yours)")
    wandb.add_argument("--group", help="group of runs")
    wandb.add_argument("--tag", action="append", default=[], help="a tag; may be given several times")
    wandb.add_argument("--mode", choices=("online", "offline", "disabled"), help="default: WANDB_MODE, or online")
    mlflow = services.add_parser("mlflow", help="to MLflow")
    mlflow.add_argument("--experiment", default="tandem", help="experiment (default: %(default)s)")
    mlflow.add_argument("--tracking-uri", help="server or store (default: MLFLOW_TRACKING_URI, or MLflow's own default)")
    mlflow.add_argument("--tag", action="append", default=[], type=_key_and_value, metavar="KEY=VALUE",
                        help="a tag; may be given several times")
    for one in (wandb, mlflow):
        _add_common(one)
    return program


def _add_common(one: argparse.ArgumentParser) -> None:
    defaults = TrackerOptions()
    one.add_argument("run", type=pathlib.Path, metavar="RUN", help="the run directory, OUT/NAME of trainer.run")
    one.add_argument("--name", help="name of the run in the service (default: that of the directory)")
    one.add_argument("--once", action="store_true", help="send what is there and end")
    one.add_argument("--report", action="store_true",
                     help="also send report.html at the end; it shows prompts and completions")
    one.add_argument("--after-cut", choices=("same-run", "new-run"), default="same-run",
                     help="where steps go that a resumed run makes again (default: %(default)s)")
    one.add_argument("--state-dir", type=pathlib.Path,
                     help="directory of what was sent, and of W&B's files (default: RUN/../.trackers/NAME)")
    one.add_argument("--poll-seconds", type=_positive, default=defaults.poll_seconds,
                     help="time between two looks at the run (default: %(default)s)")
    one.add_argument("--wait-seconds", type=_positive, default=defaults.wait_seconds,
                     help="how long to wait for the run to begin (default: %(default)s)")
    one.add_argument("--end-seconds", type=_positive, default=defaults.end_seconds,
                     help="how long a run that failed or was stopped may take to be started again (default: %(default)s)")


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key, value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def service_of(options: argparse.Namespace, state: pathlib.Path) -> Service:
    if options.service == "wandb":
        return WandbService(WandbOptions(project=options.project, folder=state, entity=options.entity, name=options.name,
                                         group=options.group, tags=tuple(options.tag), mode=options.mode))
    return MlflowService(MlflowOptions(experiment=options.experiment, name=options.name, tags=tuple(options.tag),
                                       tracking_uri=options.tracking_uri))


class StopSignals:
    """SIGINT and SIGTERM: the first lets the tracker send what is there and end, a second one ends it at once."""

    def __init__(self) -> None:
        self.number = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        self._event.set()


def say(text: str) -> None:
    print(f"trackers: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    run = RunFiles(options.run)
    here = options.run.resolve()
    state = (options.state_dir or here.parent / ".trackers" / here.name).resolve()
    stop = StopSignals()
    try:
        if options.once or options.run.exists():
            run.check()  # before a directory for what was sent is made beside it
        service = service_of(options, state)
        tracker = Tracker(run, service, Journal(state / f"{options.service}.jsonl"), TrackerOptions(
            once=options.once, sends_report=options.report, new_run_after_cut=options.after_cut == "new-run",
            poll_seconds=options.poll_seconds, wait_seconds=options.wait_seconds, end_seconds=options.end_seconds),
            stop.wait, say)
        if not tracker.follow():
            say("ends before the service has taken everything; start it again to send the rest")
            return SERVICE_LOST
    except (JournalInUse, MissingPackage, NoRun, ValueError) as error:
        say(str(error))
        return USAGE
    return SIGNALLED + stop.number if stop.number else 0


if __name__ == "__main__":
    sys.exit(main())
