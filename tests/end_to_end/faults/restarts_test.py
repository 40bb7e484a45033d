"""`tandem run` restarts a rollout server or a trainer that died, as a cluster does, with real processes that are killed."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest

import small_run

from waiting import wait_until

TERMINATED, CHILD_DIED = 143, 9


class LongRun:
    """A run that continues until it is told to stop."""

    def __init__(self, folder, model, *arguments, num_ranks=1, **trainer):
        path = small_run.write_config(folder, model, steps=100000, **trainer)
        config = json.loads(path.read_text())
        config["launch"].update(num_ranks=num_ranks, restart_delay_seconds=0.1)
        path.write_text(json.dumps(config))
        self.folder = folder
        self.log = open(folder / "tandem.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([str(small_run.TANDEM), "run", str(path), *arguments], stdout=self.log,
                                        stderr=subprocess.STDOUT)

    def output(self):
        return (self.folder / "tandem.log").read_text()

    def last_step(self):
        try:
            steps = small_run.steps(self.folder)
        except FileNotFoundError:
            return 0
        return steps[-1]["step"] if steps else 0

    def comes_to(self, step):
        wait_until(lambda: self.last_step() >= step or self.process.poll() is not None, f"no step {step}", seconds=240)
        assert self.process.poll() is None, self.output()

    def children(self, name):
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (f"PPid:\t{self.process.pid}\n" in (folder / "status").read_text()
                        and (folder / "comm").read_text().strip() == name):
                    found.append(int(folder.name))
        return sorted(found)

    def kill(self, name, which=0):
        pid = self.children(name)[which]
        os.kill(pid, signal.SIGKILL)
        return pid

    def says(self, text):
        wait_until(lambda: text in self.output() or self.process.poll() is not None, f"it never says: {text}", seconds=240)
        assert text in self.output()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=240) == TERMINATED, self.output()

    def status(self):
        done = subprocess.run([str(small_run.TANDEM), "status", str(self.folder / "runs" / "small")], capture_output=True,
                              text=True, timeout=120, check=False)
        return done.stdout


@pytest.fixture
def long_run(model, tmp_path):
    started = []

    def start(*arguments, **options):
        started.append(LongRun(tmp_path, model, *arguments, **options))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        run.log.close()


def expect_every_step_once(folder):
    steps = [line["step"] for line in small_run.steps(folder)]
    assert steps == list(range(1, len(steps) + 1))


def test_a_killed_server_is_started_again_and_joins_the_run_by_a_push(long_run, tmp_path):
    run = long_run()
    run.comes_to(2)
    before = run.kill("rollout_server")
    run.says("rollout_server 0 ended with signal 9 (Killed)")
    run.says("rollout_server 0 is started again in 0.1 s (1 of 3)")
    run.comes_to(run.last_step() + 3)
    assert run.children("rollout_server") != [before] and len(run.children("rollout_server")) == 1
    trainer = run.children("trainer")
    assert "restart  rollout_server 0  1 of 3  after signal 9 (Killed)" in run.status()
    run.stop()
    assert len(trainer) == 1
    expect_every_step_once(tmp_path)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "runs/small/events.jsonl").read_text().splitlines()]
    assert kinds.count("run_started") == 1 and "resumed" not in kinds  # the trainer continued
    # The restarted server gets all weights (no delta) before it gets groups.
    forms = [event["form"] for event in small_run.events(tmp_path, "push_committed")]
    assert "dense" in forms[2:]
    assert "restarts: rollout_server 0 1x" in run.output()
    report = (tmp_path / "runs/small/report.html").read_text()
    assert "rollout_server 0 ended with signal 9 (Killed) and was started again" in report


def test_a_killed_trainer_goes_on_from_its_checkpoint_with_the_servers_that_run(long_run, tmp_path):
    run = long_run(checkpoint={"every": 1})
    run.comes_to(3)
    server = run.children("rollout_server")
    run.kill("trainer")
    run.says("trainer is started again in 0.1 s (1 of 3)")
    wait_until(lambda: small_run.events(tmp_path, "resumed"), "it never resumes")
    run.comes_to(run.last_step() + 2)
    assert run.children("rollout_server") == server
    run.stop()
    expect_every_step_once(tmp_path)


def test_a_killed_rank_has_all_ranks_go_on_from_the_checkpoint(long_run, tmp_path):
    run = long_run(num_ranks=2, checkpoint={"every": 1})
    run.comes_to(2)
    ranks = run.children("trainer")
    assert len(ranks) == 2
    run.kill("trainer", which=1)
    run.says("trainer is started again in 0.1 s (1 of 3)")
    wait_until(lambda: small_run.events(tmp_path, "resumed"), "it never resumes", seconds=240)
    run.comes_to(run.last_step() + 2)
    assert len(run.children("trainer")) == 2 and not set(run.children("trainer")) & set(ranks)
    run.stop()
    expect_every_step_once(tmp_path)


def test_a_trainer_killed_before_its_first_checkpoint_begins_again_with_the_servers_that_run(long_run, tmp_path):
    run = long_run()
    run.comes_to(2)
    server = run.children("rollout_server")
    run.kill("trainer")
    run.says("trainer is started again in 0.1 s (1 of 3)")
    run.says("started_over: no checkpoint was saved before")
    assert small_run.events(tmp_path, "started_over")
    run.comes_to(3)
    assert run.children("rollout_server") == server
    run.stop()
    expect_every_step_once(tmp_path)


def test_the_run_ends_with_9_when_a_process_dies_once_too_often(long_run):
    run = long_run("--set", "launch.max_restarts=1")
    run.comes_to(1)
    run.kill("rollout_server")
    run.comes_to(run.last_step() + 1)
    wait_until(lambda: len(run.children("rollout_server")) == 1, "the server does not come back")
    run.kill("rollout_server")
    assert run.process.wait(timeout=240) == CHILD_DIED
    assert "rollout_server 0 was started again 1 times (launch.max_restarts): the run ends" in run.output()
