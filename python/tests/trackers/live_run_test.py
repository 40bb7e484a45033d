"""Real runs of `tandem run` on a small model, followed while they train."""
import json
import os
import pathlib
import signal
import subprocess

import pytest
import small_run

from forked_tracker import start
from mlflow_test import expected, history_of, only_run
from waiting import wait_until
from wandb_test import files_of, rows_of, values_by_step
from written_run import environment, metrics_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"))


class LiveRun:
    """`tandem run` in the background; `path` is its run directory, as for a WrittenRun."""

    def __init__(self, folder, model, steps):
        self.config = small_run.write_config(folder, model, steps=steps, checkpoint={"every": 5}, eval={"every": 4})
        config = json.loads(self.config.read_text())
        config["launch"]["restart_delay_seconds"] = 0.1
        self.config.write_text(json.dumps(config))
        self.path = folder / "runs" / "small"

    def begin(self, *arguments):
        return subprocess.Popen([small_run.TANDEM, "run", self.config, *arguments], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)


def trainer_of(launcher):
    """The process id of the trainer that the launcher started."""
    for child in pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        if pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/trainer"):
            return int(child)
    raise AssertionError("no trainer runs")


def trackers_of(run, store):
    env = environment(WANDB_MODE="offline", MLFLOW_TRACKING_URI=store)
    return [start(service, run.path, "--poll-seconds", 0.1, env=env, cwd=run.path.parents[1],
                  stderr_to=run.path.parents[1] / f"{service}.txt")
            for service in ("wandb", "mlflow")]


def wait_for(trackers, folder):
    for tracker in trackers:
        assert tracker.wait(120) == 0, [path.read_text() for path in folder.glob("*.txt")]


def check_services(run, store):
    """Both services have what metrics.jsonl has: MLflow once, W&B in its files together once."""
    metrics = metrics_of(run.path)
    rows = [row for file in files_of(run) for row in rows_of(file)]
    assert values_by_step(rows) == metrics and len(rows) == len(metrics)
    client, found = only_run(store)
    assert history_of(client, found) == expected(metrics)
    return metrics, client, found


def test_a_run_is_followed_while_it_trains_by_trackers_that_are_killed_and_started_again(tmp_path, model):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    run = LiveRun(tmp_path, model, steps=150)
    first = trackers_of(run, store)  # before there is a run directory
    training = run.begin()
    journals = [run.path.parent / ".trackers/small" / f"{service}.jsonl" for service in ("wandb", "mlflow")]
    for tracker, journal in zip(first, journals):
        wait_until(lambda here=journal: here.is_file() and '"step": 3,' in here.read_text(), "three steps were sent", 120)
        tracker.kill()
        tracker.wait()
    assert training.poll() is None, "it still trains"
    second = trackers_of(run, store)
    assert training.wait(240) == 0
    wait_for(second, tmp_path)
    metrics, client, found = check_services(run, store)
    assert set(metrics) == set(range(1, 151)) and found.info.status == "FINISHED"
    config = client.get_run(found.info.run_id).data.params
    assert config["trainer.steps"] == "150" and config["server.engine.dtype"] == "fp32" and config["launch.num_servers"] == "1"
    assert found.data.tags["run.model.type"] == "llama" and found.data.tags["events.run_finished"] == "1"
    secret = (run.path / "owner").read_text().split()[-1]
    assert len(secret) > 20 and secret not in json.dumps(config | found.data.tags)


def test_a_trainer_that_is_killed_makes_steps_again_and_the_later_ones_stand(tmp_path, model, database):
    store = database
    run = LiveRun(tmp_path, model, steps=150)
    training = run.begin()
    trackers = trackers_of(run, store)
    journals = [run.path.parent / ".trackers/small" / f"{service}.jsonl" for service in ("wandb", "mlflow")]
    for journal in journals:
        wait_until(lambda here=journal: here.is_file() and '"step": 8,' in here.read_text(), "eight steps were sent", 120)
    os.kill(trainer_of(training), signal.SIGKILL)
    assert training.wait(240) == 0
    wait_for(trackers, tmp_path)
    assert len((run.path / "restarts.jsonl").read_text().splitlines()) == 1
    metrics = metrics_of(run.path)
    rows = [row for file in files_of(run) for row in rows_of(file)]
    assert values_by_step(rows) == metrics and set(metrics) == set(range(1, 151))
    client, found = only_run(store)
    assert {name: dict(history) for name, history in history_of(client, found).items()} == {
        name: dict(history) for name, history in expected(metrics).items()}
    assert found.data.metrics["time_s"] == metrics[150]["time_s"] and found.data.tags["events.resumed"] == "1"


def test_a_run_that_is_resumed_goes_on_in_the_same_run_of_the_service(tmp_path, model, database):
    store = database
    run = LiveRun(tmp_path, model, steps=7)
    for arguments in ([], ["--resume", "--set", "trainer.steps=12"]):
        assert run.begin(*arguments).wait(240) == 0
        wait_for(trackers_of(run, store), tmp_path)
    metrics, _, found = check_services(run, store)
    assert set(metrics) == set(range(1, 13)) and found.data.tags["changed.trainer.steps"] == "12"
