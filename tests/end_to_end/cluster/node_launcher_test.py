"""`tandem ranks`: the ranks of one host as one process tree."""
import os
import pathlib
import pty
import re
import signal
import subprocess

import pytest

import small_run

from free_ports import free_port
from rollout_client import Server
from waiting import wait_until

TANDEM = str(small_run.TANDEM)


def ranks(*arguments, **environment):
    return subprocess.run([TANDEM, "ranks", *arguments], capture_output=True, text=True, timeout=240, check=False,
                          env={**os.environ, **environment})


def test_the_ranks_of_a_host_train_as_one_and_say_who_they_are(model, tmp_path):
    config = small_run.write_config(tmp_path, model)
    with Server(model, "--dtype", "fp32") as server:
        # The variables of a pod in a JobSet of one pod. The trainer is found in the directory of tandem.
        done = ranks("--per-node", "2", "--nodes", "1", "--", "trainer", "--config", str(config), "--servers",
                     server.address, JOB_COMPLETION_INDEX="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(small_run.steps(tmp_path)) == 3
    assert "ranks 0 to 1 of 2 (node 0 of 1, as said by: JobSet)" in done.stderr
    for rank in (0, 1):
        assert re.search(rf"^\[rank {rank}\] .*rank={rank} of=2 said_by=torchrun local_rank={rank} ", done.stderr,
                         re.MULTILINE), done.stderr


def test_two_hosts_meet_where_they_are_told(model, tmp_path):
    config = small_run.write_config(tmp_path, model)
    port = free_port()
    with Server(model, "--dtype", "fp32") as server:
        command = [TANDEM, "ranks", "--per-node", "1", "--nodes", "2", "--master", f"127.0.0.1:{port}"]
        trainer = ["--", "trainer", "--config", str(config), "--servers", server.address]
        second = subprocess.Popen([*command, "--node-rank", "1", *trainer], stderr=subprocess.DEVNULL)
        first = subprocess.run([*command, "--node-rank", "0", *trainer], capture_output=True, text=True, timeout=240,
                               check=False)
        assert first.returncode == 0, first.stderr
        assert second.wait(timeout=240) == 0
    assert len(small_run.steps(tmp_path)) == 3


def children_of(pid):
    return [int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/status")
            if f"PPid:\t{pid}\n" in text_of(path)]


def text_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def is_alive(pid):
    status = text_of(pathlib.Path(f"/proc/{pid}/status"))
    return status != "" and "State:\tZ" not in status


@pytest.mark.parametrize("how, code", [("a rank is killed", 137), ("told to stop", 143), ("launcher is killed", -9)])
def test_nobody_is_left_however_a_launch_ends(model, tmp_path, how, code):
    config = small_run.write_config(tmp_path, model, steps=100000)
    metrics = tmp_path / "runs" / "small" / "metrics.jsonl"
    with Server(model, "--dtype", "fp32") as server:
        launch = subprocess.Popen([TANDEM, "ranks", "--per-node", "2", "--logs", str(tmp_path / "logs"), "--", "trainer",
                                   "--config", str(config), "--servers", server.address], stderr=subprocess.PIPE, text=True)
        wait_until(lambda: metrics.exists() and "loss/total" in metrics.read_text(), "no step was made")
        pids = children_of(launch.pid)
        assert len(pids) == 2
        if how == "a rank is killed":
            os.kill(next(pid for pid in pids if "RANK=1" in text_of(pathlib.Path(f"/proc/{pid}/environ")).split("\0")),
                    signal.SIGKILL)
        else:
            os.kill(launch.pid, signal.SIGTERM if how == "told to stop" else signal.SIGKILL)
        _, errors = launch.communicate(timeout=120)
    assert launch.returncode == code, errors
    wait_until(lambda: not any(map(is_alive, pids)), "a rank is left")
    if how == "a rank is killed":
        # The other rank noticed the loss itself, and its last lines are printed.
        assert "rank 0 ended with exit code 10" in errors and re.search(r"\[rank 0\] .*rank 1 ", errors), errors
    if how == "told to stop":
        assert list((tmp_path / "runs" / "small" / "checkpoints").glob("step_*"))


def test_what_cannot_be_launched_is_refused(tmp_path):
    done = ranks("--per-node", "2", "--", "no_such_program")
    assert done.returncode == 2 and "no_such_program: no such program in PATH or beside tandem" in done.stderr
    done = ranks("--per-node", "2", "--nodes", "3", "--", "true")
    assert done.returncode == 2 and "give --node-rank" in done.stderr
    done = ranks("--per-node", "2", "true", RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_ADDR="a")
    assert done.returncode == 2 and "LOCAL_RANK is set" in done.stderr


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_prefixes_are_coloured_on_a_terminal_unless_no_colour_is_wanted(no_colour):
    ours, theirs = pty.openpty()
    launch = subprocess.Popen([TANDEM, "ranks", "--per-node", "1", "--", "echo", "--flag", "hello"], stdout=theirs,
                              stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", "NO_COLOR": no_colour})
    assert launch.wait(timeout=240) == 0
    os.close(theirs)
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    assert shown == ("[rank 0] --flag hello\r\n" if no_colour else "\033[36m[rank 0]\033[0m --flag hello\r\n")
