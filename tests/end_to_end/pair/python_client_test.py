"""examples/python_client.py with the real server, and the server's behaviour at start and end."""
import os
import signal
import subprocess
import sys

import pytest

import small_run

SOURCE = os.environ["TANDEM_SOURCE"]
SERVER = os.path.join(os.environ["TANDEM_BIN"], "rollout_server")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(small_run.make_model(tmp_path_factory.mktemp("model"), kind="qwen3"))


@pytest.fixture
def server(model, tmp_path):
    process = subprocess.Popen(
        [SERVER, "--model", model, "--listen", "127.0.0.1:0", "--dtype", "fp32",
         "--port-file", str(tmp_path / "port")], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()  # the server prints the address or ends
    assert line.startswith("listening on 127.0.0.1:"), (line, process.poll())
    yield process, line.split()[-1]
    if process.poll() is None:
        process.kill()
    process.wait()


def run_server(*arguments):
    return subprocess.run([SERVER, *arguments], capture_output=True, text=True, timeout=120)


def test_the_example_prints_every_completion_with_one_log_prob_per_token(server, model):
    _, address = server
    done = subprocess.run([sys.executable, f"{SOURCE}/examples/python_client.py", address, model],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(line[:2] for line in lines if line.startswith("#")) == ["#0", "#1", "#2", "#3"]
    for line in lines:
        if line.startswith("   log-probs "):
            values = [float(word) for word in line.split()[1:]]
            assert 1 <= len(values) <= 16
            assert all(value <= 0 for value in values)


def test_sigterm_drains_and_exits_with_0(server):
    process, _ = server
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


def test_a_port_in_use_is_a_clear_error(server, model):
    _, address = server
    second = run_server("--model", model, "--listen", address)
    assert second.returncode == 2
    assert f"cannot listen on {address}" in second.stderr


def test_a_missing_model_has_its_own_exit_code(tmp_path):
    done = run_server("--model", str(tmp_path / "nowhere"))
    assert done.returncode == 3
    assert "config.json" in done.stderr


def test_an_unknown_option_is_refused_with_its_name(tmp_path):
    done = run_server("--model", "m", "--set", "server.max_queued_group=3")
    assert done.returncode == 2
    assert "max_queued_groups" in done.stderr


def test_plaintext_beyond_loopback_is_refused(tmp_path):
    done = run_server("--model", "m", "--listen", "0.0.0.0:0")
    assert done.returncode == 2
    assert "loopback" in done.stderr
