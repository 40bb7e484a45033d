"""A network that drops or delays the messages between a trainer and its servers (faults 12 and 13)."""
import contextlib
import signal
import subprocess

import small_run

from rollout_client import BIN, Server
from tcp_proxy import TcpProxy
from waiting import wait_until


@contextlib.contextmanager
def trainer(config, *servers):
    with open(config.parent / "trainer.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([str(BIN / "trainer"), "--config", str(config), "--servers", ",".join(servers)],
                                   stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_steps(folder, count, seconds=240):
    metrics = folder / "runs" / "small" / "metrics.jsonl"
    log = folder / "trainer.log"
    wait_until(lambda: metrics.exists() and len(small_run.steps(folder)) >= count,
               f"{count} steps: {log.read_text()[-2000:]}", seconds=seconds)


def servers_of(folder, kind):
    return [event["server"] for event in small_run.events(folder, kind)]


def test_fault_12_a_connection_that_swallows_everything_is_found_by_keepalives_and_the_run_goes_on(model, tmp_path):
    """The run continues within 20 + 10 s, although the deadline of the lost group is 300 s."""
    config = small_run.write_config(tmp_path, model, steps=100000)
    with Server(model, "--dtype", "fp32") as near, Server(model, "--dtype", "fp32") as far, TcpProxy(far.address) as cable:
        with trainer(config, near.address, cable.address) as process:
            wait_for_steps(tmp_path, 2)
            cable.swallow()
            wait_for_steps(tmp_path, len(small_run.steps(tmp_path)) + 3, seconds=240)
            assert cable.address in servers_of(tmp_path, "server_lost")
            assert near.address not in servers_of(tmp_path, "server_lost")
            assert not small_run.events(tmp_path, "group_dropped")
            cable.heal()
            wait_until(lambda: cable.address in servers_of(tmp_path, "server_back"), "the server is used again")
            wait_for_steps(tmp_path, len(small_run.steps(tmp_path)) + 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 143


def test_fault_13_a_slow_network_makes_a_run_slower_and_nothing_else(model, tmp_path):
    config = small_run.write_config(tmp_path, model, steps=3)
    with Server(model, "--dtype", "fp32") as server, TcpProxy(server.address, delay_seconds=0.1) as cable:
        with trainer(config, cable.address) as process:
            assert process.wait(timeout=240) == 0, (tmp_path / "trainer.log").read_text()
    assert [step["step"] for step in small_run.steps(tmp_path)] == [1, 2, 3]
    assert not servers_of(tmp_path, "server_lost") and not small_run.events(tmp_path, "group_dropped")
    assert "asked for again" not in (tmp_path / "trainer.log").read_text()
