"""Faults during a run of the real programs: an engine that hangs, a stopped server, a damaged checkpoint, a wall clock that
jumps, lost packets (faults 3, 13, 16 and 23)."""
import contextlib
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys

import pytest

import small_run

from rollout_client import BIN, Server, history_arguments, load_stubs
from stopped_thread import StoppedThread
from tcp_proxy import TcpProxy
from waiting import wait_until

SUPPORT = small_run.SOURCE / "tests" / "support"
rollout, rollout_grpc, _, _ = load_stubs()
CLOCK_SHIM = pathlib.Path(os.environ["TANDEM_TESTS"]) / "libclock_shim.so"


@contextlib.contextmanager
def trainer(config, *servers, env=None):
    with open(config.parent / "trainer.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([str(BIN / "trainer"), "--config", str(config), "--servers", ",".join(servers)],
                                   stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def num_steps(folder):
    metrics = folder / "runs" / "small" / "metrics.jsonl"
    return len(small_run.steps(folder)) if metrics.exists() else 0


def wait_for_more_steps(folder, process, more):
    target = num_steps(folder) + more
    wait_until(lambda: num_steps(folder) >= target or process.poll() is not None, f"no {more} more steps", seconds=400)
    assert process.poll() is None, (folder / "trainer.log").read_text()[-3000:]


def servers_of(folder, kind):
    return [event["server"] for event in small_run.events(folder, kind)]


def trained_from(folder, server, step):
    """True if a step after `step` trained on a group that `server` sampled."""
    return any(group["server"] == server.address for number in range(step + 1, num_steps(folder) + 1)
               for group in small_run.rollouts(folder, number))


@contextlib.contextmanager
def stopped_process(server):
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("hang,event", [(lambda server: StoppedThread(server.process.pid, "tandem-engine"), "server_hung"),
                                        (stopped_process, "server_lost")], ids=["engine", "process"])
def test_a_server_that_hangs_in_mid_generation_is_out_and_the_run_goes_on_and_takes_it_back(model, tmp_path, hang, event):
    """The trainer waits for its group until the deadline of the call and then asks another server. If only the engine hangs, the
    server still answers other calls, and reports how long its engine has been silent. When that is as long as a call may take,
    the trainer stops using it."""
    config = small_run.write_config(tmp_path, model, steps=100000, client={"call_timeout_seconds": 20},
                                    push={"timeout_seconds": 20})
    with Server(model, "--dtype", "fp32") as well, Server(model, "--dtype", "fp32") as ill:
        with trainer(config, well.address, ill.address) as process:
            wait_for_more_steps(tmp_path, process, 2)
            with hang(ill):
                wait_until(lambda: ill.address in servers_of(tmp_path, event) or process.poll() is not None,
                           "the hang goes unseen", seconds=400)
                wait_for_more_steps(tmp_path, process, 2)
            moves_again = num_steps(tmp_path)
            wait_until(lambda: trained_from(tmp_path, ill, moves_again) or process.poll() is not None,
                       "the server is not taken back", seconds=400)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=240) == 143, (tmp_path / "trainer.log").read_text()[-3000:]
    assert well.address not in servers_of(tmp_path, "server_lost")
    assert not small_run.events(tmp_path, "group_dropped")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_run_that_resumes_over_a_damaged_checkpoint_goes_on_from_the_one_before_and_says_so(model, tmp_path, file):
    config = small_run.write_config(tmp_path, model, deterministic=True, checkpoint={"every": 1, "keep": 3})
    code, output = small_run.run(config)
    assert code == 0, output
    before = [step["loss/total"] for step in small_run.steps(tmp_path)]
    damaged = tmp_path / "runs" / "small" / "checkpoints" / "step_3" / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    code, output = small_run.run(config, "--resume", "--set", "trainer.steps=5")
    assert code == 0, output
    resumed = small_run.events(tmp_path, "resumed")
    assert [event["message"] for event in resumed] == ["from checkpoint of step 2"]
    assert f"step_3/{file}" in resumed[0]["refused"]
    steps = small_run.steps(tmp_path)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    assert steps[2]["loss/total"] == before[2]  # step 3 is repeated with the same groups


class WallClock:
    """Shifts the wall clock of the processes that get `env`."""

    def __init__(self, folder):
        self.path = folder / "clock_offset"
        self.set(0)
        shim = folder / "clock_shim.so"  # in LD_PRELOAD, a space ends a path
        shim.symlink_to(CLOCK_SHIM)
        self.env = {"LD_PRELOAD": str(shim), "TANDEM_CLOCK_OFFSET": str(self.path)}

    def set(self, seconds):
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))


def test_fault_23_a_wall_clock_that_jumps_back_and_forth_changes_nothing(model, tmp_path):
    """A jump that is longer than every lease and deadline has no effect, because these use the steady clock."""
    config = small_run.write_config(tmp_path, model, steps=100000, checkpoint={"every": 1})
    clock = WallClock(tmp_path)
    with Server(model, "--dtype", "fp32", env=clock.env) as server:
        with trainer(config, server.address, env=clock.env) as process:
            wait_for_more_steps(tmp_path, process, 2)
            for hours in (1, -1, 24, 0):
                clock.set(hours * 3600)
                wait_for_more_steps(tmp_path, process, 3)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=240) == 143, (tmp_path / "trainer.log").read_text()[-3000:]
    log = (tmp_path / "trainer.log").read_text()
    times = [line[:13] for line in log.splitlines() if line[:4].isdigit()]
    assert len(set(times)) > 2, f"the clock of the trainer never jumped: {times[:3]}"
    assert not servers_of(tmp_path, "server_lost") and not small_run.events(tmp_path, "group_dropped")
    assert not small_run.events(tmp_path, "push_failed") and "lease" not in log


def test_fault_23_a_score_under_way_outlives_a_wall_clock_that_jumps(model, tmp_path):
    """A jump by a day, during a call that may take ten minutes and needs many slices: one sequence after the other, token by token."""
    clock = WallClock(tmp_path)
    with Server(model, "--dtype", "fp32", env=clock.env) as server:
        stub = rollout_grpc.RolloutServiceStub(server.channel)
        sequences = [rollout.ScoreSequence(token_ids=[1 + (i + j) % 300 for j in range(200)]) for i in range(100)]
        call = stub.Score.future(rollout.ScoreRequest(sequences=sequences, path=rollout.SCORE_PATH_DECODE, alone=True), timeout=600)
        wait_until(lambda: stub.GetInfo(rollout.GetInfoRequest(), timeout=60).kv_used_tokens > 0 or call.done(), "no score begins")
        assert not call.done(), "a longer score is needed"
        clock.set(24 * 3600)
        assert len(call.result().scores) == 100


def lossy_network_there():
    return subprocess.run(["unshare", "-rn", sys.executable, str(SUPPORT / "lossy_network.py"), "0", "0", "/dev/null", "--", "true"],
                          capture_output=True, timeout=240, check=False).returncode == 0


def test_fault_13_a_network_that_loses_packets_makes_a_run_slower_and_nothing_else(model, tmp_path):
    """One of twenty packets is lost in each direction. Without the right to create a network, a delay stands for the losses."""
    config = small_run.write_config(tmp_path, model, steps=3)
    log = tmp_path / "trainer.log"
    if lossy_network_there():
        seed = random.randrange(1 << 30)
        print("seed", seed)
        port = tmp_path / "port"
        script = ('"$1" --model "$3" --dtype fp32 --listen 10.9.0.1:0 --insecure-plaintext-open-to-the-network '
                  '--port-file "$4" "${@:6}" & server=$!; while [ ! -s "$4" ]; do kill -0 $server || exit 99; sleep 0.1; done; '
                  '"$2" --config "$5" --servers 10.9.0.2:$(cat "$4"); code=$?; kill -9 $server; exit $code')
        with open(log, "w", encoding="utf-8") as file:
            done = subprocess.run(
                ["unshare", "-rn", sys.executable, str(SUPPORT / "lossy_network.py"), "0.05", str(seed), str(tmp_path / "counts"),
                 "--", "bash", "-c", script, "bash", str(BIN / "rollout_server"), str(BIN / "trainer"), str(model), str(port),
                 str(config), *history_arguments()], stdout=file, stderr=subprocess.STDOUT, timeout=600, check=False)
        assert done.returncode == 0, log.read_text()[-3000:]
        packets, lost = map(int, (tmp_path / "counts").read_text().split())
        assert packets > 200 and lost > 0
    else:
        with Server(model, "--dtype", "fp32") as server, TcpProxy(server.address, delay_seconds=0.3) as cable:
            with trainer(config, cable.address) as process:
                assert process.wait(timeout=600) == 0, log.read_text()[-3000:]
    assert [step["step"] for step in small_run.steps(tmp_path)] == [1, 2, 3]
    assert not servers_of(tmp_path, "server_lost") and not small_run.events(tmp_path, "group_dropped")
