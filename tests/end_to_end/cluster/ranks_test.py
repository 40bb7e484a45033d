"""A trainer of several ranks in real processes: the same training as with one rank, resume, a lost rank, and torchrun."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

import small_run

from free_ports import free_port
from rollout_client import Server
from waiting import wait_until

RANK_LOST = 10


def write_config(folder, model, num_ranks, **trainer):
    folder.mkdir(exist_ok=True)
    trainer = {"optimizer": {"learning_rate": 1e-5}, **trainer}
    path = small_run.write_config(folder, model, deterministic=True, **trainer)
    config = json.loads(path.read_text())
    config["launch"]["num_ranks"] = num_ranks
    path.write_text(json.dumps(config))
    return path


def train(folder, model, num_ranks, *arguments, **trainer):
    code, output = small_run.run(write_config(folder, model, num_ranks, **trainer), *arguments)
    assert code == 0, output
    return small_run.steps(folder)


def expect_same_learning(these, those):
    """With batches from one seed: 16 completions of 12 tokens whose advantages are about 1."""
    assert len(these) == len(those)
    for a, b in zip(these, those):
        assert a["loss/total"] == pytest.approx(b["loss/total"], abs=1e-6)
        assert a["optimizer/grad_norm"] == pytest.approx(b["optimizer/grad_norm"], rel=1e-4)
        assert a["reward/mean"] == b["reward/mean"]
        assert a["drift/mean_abs_delta"] == pytest.approx(b["drift/mean_abs_delta"], abs=2e-6)


SAVED = {"steps": 4, "checkpoint": {"every": 2}}  # the options of the runs that tests compare with one another


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """A run of one rank: its folder."""
    folder = tmp_path_factory.mktemp("alone")
    train(folder, model, 1, **SAVED)
    return folder


@pytest.fixture(scope="module")
def two(model, tmp_path_factory):
    """The same run with two ranks."""
    folder = tmp_path_factory.mktemp("two")
    train(folder, model, 2, **SAVED)
    return folder


@pytest.fixture(scope="module")
def cut(model, tmp_path_factory):
    """The same run with two ranks, which ended after two steps of four."""
    folder = tmp_path_factory.mktemp("cut")
    train(folder, model, 2, **{**SAVED, "steps": 2})
    return folder


def go_on(cut, folder, model, num_ranks):
    """A copy of the run that was cut, which goes on in `folder` with so many ranks."""
    shutil.copytree(cut / "runs", folder / "runs")
    return train(folder, model, num_ranks, "--resume", **SAVED)


def test_two_ranks_learn_what_one_learns_and_three_too(model, alone, two, tmp_path):
    train(tmp_path, model, 3, **SAVED)
    for folder, num_ranks in ((two, 2), (tmp_path, 3)):
        expect_same_learning(small_run.steps(folder), small_run.steps(alone))
        logs = folder / "runs" / "small" / "logs"
        assert len(list(logs.glob("trainer*.log"))) == num_ranks


def test_two_ranks_and_two_servers_with_weights_in_broadcasts_learn_what_one_of_each_learns(model, tmp_path):
    def learn(name, num_ranks, num_servers, transport):
        # With invariant numerics, a completion does not depend on the server or on the batch composition.
        config = write_config(tmp_path / name, model, num_ranks, push={"transport": transport})
        path = tmp_path / name / "run.yaml"
        settings = json.loads(config.read_text())
        settings["launch"]["num_servers"] = num_servers
        settings["server"]["engine"].update(numerics="invariant", dtype="bf16")
        path.write_text(json.dumps(settings))
        code, output = small_run.run(path)
        assert code == 0, output
        events = [json.loads(line) for line in
                  (tmp_path / name / "runs" / "small" / "events.jsonl").read_text().splitlines()]
        pushed = [event for event in events if event["kind"] == "push_committed" and event["bytes"] > 0]
        assert len(pushed) == 3 * num_servers and all(event["transport"] == transport for event in pushed)
        return small_run.steps(tmp_path / name), {event["version"]: event["digest"] for event in pushed}

    alone, digests_of_one = learn("one", 1, 1, "stream")
    pair, digests_of_two = learn("two", 2, 2, "collective")
    expect_same_learning(pair, alone)
    assert set(digests_of_two) == set(digests_of_one) == {1, 2, 3}


def test_ranks_that_hold_parts_of_the_weights_learn_and_measure_what_one_rank_does(model, tmp_path):
    """With all features that read weights: casts for a bf16 server, probes, the split, captures, checkpoints, resume."""
    def learn(name, num_ranks, *arguments, steps=4, **ranks):
        config = write_config(tmp_path / name, model, num_ranks, steps=steps, checkpoint={"every": 2}, ranks=ranks,
                              probe={"every": 1, "completions": 8}, split={"every": 2}, capture={"every": 2})
        settings = json.loads(config.read_text())
        # With invariant numerics, a completion does not depend on the batch composition.
        settings["server"]["engine"].update(numerics="invariant", dtype="bf16")
        config.write_text(json.dumps(settings))
        code, output = small_run.run(config, *arguments)
        assert code == 0, output
        return small_run.steps(tmp_path / name), tmp_path / name / "runs" / "small"

    alone, run_of_one = learn("one", 1)
    sharded = {"shard_parameters": True}
    learn("parts", 2, steps=2, **sharded)
    parts, run_of_parts = learn("parts", 2, "--resume", **sharded)
    expect_same_learning(parts, alone)
    # Null after a resume, because there is no previous push.
    measured = [name for name in alone[-1]
                if re.match(r"drift/(probe|split)/", name) and name != "drift/probe/push_distance"]
    assert len(measured) > 10
    for ours, expected in zip(parts, alone):
        for name in measured:
            if isinstance(expected.get(name), float):
                assert ours[name] == pytest.approx(expected[name], rel=0.05, abs=2e-4), name
    files = ["checkpoints/step_4/model.safetensors", "captures/weights/v_3.safetensors", "captures/weights/v_2.safetensors"]
    for file in files:
        ours, expected = load_file(run_of_parts / file), load_file(run_of_one / file)
        assert ours.keys() == expected.keys()
        for name, values in expected.items():
            assert abs(ours[name] - values).max() < 1e-6, f"{file}: {name}"


def test_a_run_of_two_ranks_goes_on_where_it_was_saved(model, two, cut, tmp_path):
    rest = go_on(cut, tmp_path, model, 2)
    assert [step["step"] for step in rest] == [1, 2, 3, 4]
    expect_same_learning(rest, small_run.steps(two))


def moments(folder, step):
    """The tensors of a checkpoint by name."""
    path = folder / "runs" / "small" / "checkpoints" / f"step_{step}" / "optimizer.safetensors"
    return load_file(path)


def test_a_run_of_two_ranks_goes_on_with_one_and_with_three(model, alone, cut, tmp_path):
    """Each rank has a part of the optimizer state, and a checkpoint has all of it."""
    for num_ranks in (1, 3):
        folder = tmp_path / str(num_ranks)
        rest = go_on(cut, folder, model, num_ranks)
        assert [step["step"] for step in rest] == [1, 2, 3, 4]
        expect_same_learning(rest, small_run.steps(alone))
        expected, got = moments(alone, 4), moments(folder, 4)
        assert expected.keys() == got.keys()
        for name, values in expected.items():
            assert got[name].shape == values.shape
            assert abs(got[name] - values).max() <= 1e-4 * abs(values).max() + 1e-9, name
        held = [step["optimizer/state_bytes"] for step in rest]
        assert held[0] == pytest.approx(held[-1] * num_ranks / 2, rel=0.05)


class LongRun:
    """A run of two ranks that does not end by itself, and all its processes."""

    def __init__(self, folder, model, **ranks):
        config = write_config(folder, model, 2, steps=100000, ranks=ranks)
        self.folder = folder
        self.process = subprocess.Popen([str(small_run.TANDEM), "run", str(config), "--set", "launch.max_restarts=0"], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        metrics = folder / "runs" / "small" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and "loss/total" in metrics.read_text(), "no step was made")

    def pid_of(self, rank):
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"PPid:\t{self.process.pid}\n" not in (folder / "status").read_text():
                    continue
                variables = (folder / "environ").read_text().split("\0")
            except OSError:
                continue
            if f"RANK={rank}" in variables:
                return int(folder.name)
        raise AssertionError(f"rank {rank} does not run")

    def end(self):
        """(exit code, output, no child left)."""
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output

    def log(self, name):
        return (self.folder / "runs" / "small" / "logs" / f"{name}.log").read_text()


@pytest.fixture
def long_run(model, tmp_path):
    started = []

    def start(**ranks):
        started.append(LongRun(tmp_path / "long", model, **ranks))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()


def is_alive(pid):
    try:
        return "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_a_rank_that_is_killed_ends_the_run_with_its_own_exit_code_and_nothing_is_left(long_run, parts):
    run = long_run(shard_parameters=parts)
    pids = [run.pid_of(0), run.pid_of(1)]
    os.kill(pids[1], signal.SIGKILL)
    code, output = run.end()
    assert code == RANK_LOST, output
    assert "trainer_1 ended with signal 9" in output or re.search(r"rank 1 \(\S+\) is silent", output), output
    wait_until(lambda: not any(map(is_alive, pids)), "a rank is left")


def test_rank_0_that_is_killed_ends_the_others(long_run):
    run = long_run()
    pids = [run.pid_of(0), run.pid_of(1)]
    os.kill(pids[0], signal.SIGKILL)
    code, output = run.end()
    assert code != 0 and "trainer ended with signal 9" in output, output
    wait_until(lambda: not any(map(is_alive, pids)), "a rank is left")


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_a_rank_that_hangs_is_named_within_the_deadline_and_the_flight_record_is_written(long_run, parts):
    run = long_run(deadline_seconds=10, shard_parameters=parts)
    pid = run.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    code, output = run.end()
    assert code == RANK_LOST, output
    assert re.search(r"(all_reduce|broadcast|all_gather|reduce_scatter) \d+ of group train .* failed after .* "
                     rf"\(deadline 10.0 s\): rank 1 \(\S+:{pid}\) is silent: dead, stopped or cut off", output), output
    record = json.loads((run.folder / "runs" / "small" / "flight_rank_0.json").read_text())
    assert record["entries"]
    wait_until(lambda: not is_alive(pid), "the rank that hung is left")


@pytest.fixture(scope="module")
def server(model):
    """The server of trainers that release it when they end."""
    with Server(model, "--dtype", "fp32") as started:
        yield started


def start_ranks(config, address, *words):
    """A trainer of two ranks without a launcher: [process]."""
    variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [subprocess.Popen([str(small_run.TANDEM.parent / "trainer"), "--config", str(config), "--servers", address, *words],
                             env={**variables, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True) for rank in range(2)]


@pytest.mark.parametrize("asked", [0, 1])
def test_a_signal_to_any_rank_saves_and_ends_all_of_them_as_interrupted(model, server, tmp_path, asked):
    """A cluster evicts one pod. Exit code 0 of the others would mean that their part of the run is done."""
    config = write_config(tmp_path, model, 1, steps=100000)
    metrics = tmp_path / "runs" / "small" / "metrics.jsonl"
    ranks = start_ranks(config, server.address, "--resume-or-start")
    try:
        wait_until(lambda: metrics.exists() and "loss/total" in metrics.read_text(), "no step was made")
        ranks[asked].send_signal(signal.SIGTERM)
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [143, 143], errors
    last = (tmp_path / "runs" / "small" / "checkpoints" / "LATEST").read_text().strip()
    done = int(last.removeprefix("step_"))
    again = start_ranks(config, server.address, "--resume-or-start", "--set", f"trainer.steps={done + 1}")
    errors = [rank.communicate(timeout=120)[1] for rank in again]
    assert [rank.returncode for rank in again] == [0, 0], errors
    assert small_run.steps(tmp_path)[-1]["step"] == done + 1
    assert small_run.events(tmp_path, "resumed")


def test_a_rank_0_that_hangs_is_given_up_by_the_others(model, tmp_path):
    """Rank 0 hosts the store, and a rank that waits for its next command in the store must not hang too."""
    config = write_config(tmp_path, model, 1, steps=100000, ranks={"silence_seconds": 3, "deadline_seconds": 10})
    metrics = tmp_path / "runs" / "small" / "metrics.jsonl"
    with Server(model, "--dtype", "fp32") as server:
        ranks = start_ranks(config, server.address)
        try:
            wait_until(lambda: metrics.exists() and "loss/total" in metrics.read_text(), "no step was made")
            ranks[0].send_signal(signal.SIGSTOP)
            error = ranks[1].communicate(timeout=120)[1]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    assert ranks[1].returncode == RANK_LOST, error
    # The message depends on what the rank did when rank 0 stopped: it waited for a command, or took part in a collective
    # operation, whose failure is explained by the lost heartbeat or by the store that does not answer.
    messages = (r"rank 0 did not answer for 3s: stopped or cut off", r"rank 0 \(\S+\) is silent",
                r"rank 0 \(\S+\), which holds the store, does not answer: stopped or cut off")
    assert any(re.search(message, error) for message in messages), error


def test_all_ranks_end_with_the_exit_code_of_rank_0(model, server, tmp_path):
    """The exit code of each rank alone may decide whether a launcher tries again."""
    config = write_config(tmp_path, model, 1, data={"train": str(tmp_path / "none.jsonl"), "chat": False})
    ranks = start_ranks(config, server.address)
    errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [3, 3], errors
    assert "none.jsonl" in errors[0] and "rank 0 ended with exit code 3" in errors[1]


def test_torchrun_starts_the_ranks_of_a_trainer(model, server, tmp_path):
    config = write_config(tmp_path, model, 1)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2",
         "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0",
         str(small_run.TANDEM.parent / "trainer"), "--config", str(config), "--servers", server.address],
        capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(small_run.steps(tmp_path)) == 3


def test_ranks_with_different_configurations_are_refused(model, server, tmp_path):
    """The last test with the server, because rank 0 is killed and may still hold it."""
    config = write_config(tmp_path, model, 1)
    trainer = str(small_run.TANDEM.parent / "trainer")
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = subprocess.Popen([trainer, "--config", str(config), "--servers", server.address],
                             env={**os.environ, **variables, "RANK": "0"}, stderr=subprocess.DEVNULL)
    try:
        second = subprocess.run([trainer, "--config", str(config), "--servers", server.address, "--set",
                                 "trainer.seed=6"], env={**os.environ, **variables, "RANK": "1"},
                                capture_output=True, text=True, timeout=120)
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 2, second.stderr
    assert "rank 1" in second.stderr and "has another configuration than rank 0" in second.stderr
