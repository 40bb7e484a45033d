"""Finding and starting the programs. Stand-ins are shell scripts; the real server and `tandem run --dry-run` are started too."""
import os
import signal
import socket
import subprocess
import sys

import pytest
from conftest import ROOT

from waiting import wait_until

from tandem_rl import launch

sys.path.append(str(ROOT / "tests" / "end_to_end"))

# Ctrl-C, and then a `tandem run` that needs time to end: as long as the test keeps the pipe `go` closed.
RUN = "from tandem_rl import launch; print(launch.run('run.yaml'))"
SLOW_END = """#!/bin/bash
trap 'echo > stopping; cat go; echo > saved; exit 130' INT
echo > started
while :; do read -t 1 <> idle || true; done
"""


def program(folder, name, text="#!/bin/sh\necho here\n"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No program can be found."""
    monkeypatch.delenv("TANDEM_BIN")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(launch, "OWN_FOLDER", tmp_path / "own")


def test_programs_are_looked_for_in_the_named_folder_then_in_the_package_then_on_path(nowhere, tmp_path, monkeypatch):
    on_path = program(tmp_path / "path", "trainer")
    assert launch.find_binary("trainer") == on_path
    own = program(tmp_path / "own", "trainer")
    assert launch.find_binary("trainer") == own
    named = program(tmp_path / "named", "trainer")
    monkeypatch.setenv("TANDEM_BIN", str(tmp_path / "named"))
    assert launch.find_binary("trainer") == named


def test_a_folder_that_is_named_and_lacks_the_program_is_an_error_and_no_other_is_taken(nowhere, tmp_path, monkeypatch):
    program(tmp_path / "path", "tandem")
    monkeypatch.setenv("TANDEM_BIN", str(tmp_path))
    with pytest.raises(launch.ProgramNotFound, match=f"tandem is not in the directory TANDEM_BIN={tmp_path}: install the wheel"):
        launch.find_binary("tandem")


def test_a_console_script_of_the_package_is_not_taken_for_the_program(nowhere, tmp_path, monkeypatch):
    program(tmp_path / "path", "tandem", "#!/usr/bin/python3\nfrom tandem_rl.launch import exec_tandem\n")
    with pytest.raises(launch.ProgramNotFound, match=r"the 1 directories of PATH \(TANDEM_BIN is not set\)"):
        launch.find_binary("tandem")
    wanted = program(tmp_path / "later", "tandem")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{tmp_path / 'later'}")
    assert launch.find_binary("tandem") == wanted


def test_a_file_that_cannot_be_executed_and_another_name_are_refused(nowhere, tmp_path):
    program(tmp_path / "path", "tandem").chmod(0o644)
    with pytest.raises(launch.ProgramNotFound):
        launch.find_binary("tandem")
    with pytest.raises(ValueError, match="'tandems' is no program"):
        launch.find_binary("tandems")


def test_a_run_is_given_its_settings_as_yaml_and_its_exit_code_is_seen(tmp_path, monkeypatch, capfd):
    program(tmp_path, "tandem", '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit 9\n')
    monkeypatch.setenv("TANDEM_BIN", str(tmp_path))
    sets = {"trainer.steps": 3, "trainer.deterministic": True, "trainer.model": "a b", "trainer.servers": ["h:1"], "x": None, "y": 1e-06}
    assert launch.run("run.yaml", sets=sets, arguments=["--resume"], check=False) == 9
    assert capfd.readouterr().out.splitlines() == [
        "run", "run.yaml", "--set", "trainer.steps=3", "--set", "trainer.deterministic=true", "--set", "trainer.model=a b",
        "--set", 'trainer.servers=["h:1"]', "--set", "x=null", "--set", "y=1e-06", "--resume"]
    with pytest.raises(subprocess.CalledProcessError) as failed:
        launch.run("run.yaml")
    assert failed.value.returncode == 9


def test_ctrl_c_waits_for_the_run_to_save_its_checkpoint(tmp_path):
    program(tmp_path, "tandem", SLOW_END)
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "idle")
    environment = {**os.environ, "TANDEM_BIN": str(tmp_path), "PYTHONPATH": str(ROOT / "python")}
    python = subprocess.Popen([sys.executable, "-c", RUN], cwd=tmp_path, env=environment, start_new_session=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until((tmp_path / "started").exists, "the run starts")
        os.killpg(python.pid, signal.SIGINT)  # as a terminal does
        wait_until((tmp_path / "stopping").exists, "the run is told")
        with pytest.raises(subprocess.TimeoutExpired):
            python.wait(timeout=1)
        with open(tmp_path / "go", "w"):
            pass
        out, errors = python.communicate(timeout=60)
    finally:
        if python.poll() is None:
            os.killpg(python.pid, signal.SIGKILL)
    assert (tmp_path / "saved").exists() and "KeyboardInterrupt" in errors and out == "" and python.returncode != 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import small_run
    return small_run.make_model(tmp_path_factory.mktemp("model"))


def test_the_real_tandem_takes_the_settings(model, tmp_path, capfd):
    import small_run
    config = small_run.write_config(tmp_path, model)
    assert launch.run(config, sets={"trainer.optimizer.learning_rate": 0.25}, arguments=["--dry-run"]) == 0
    assert "learning_rate: 0.25" in capfd.readouterr().out


def test_a_server_serves_on_a_free_port_until_the_end_of_the_block(model):
    with launch.RolloutServer(model, dtype="fp32", settings={"server.max_queued_groups": 3},
                              environment={"OMP_NUM_THREADS": "1"}) as server:
        host, port = server.address.split(":")
        socket.create_connection((host, int(port)), timeout=60).close()
        assert "listening on" in server.log() and os.path.exists(f"/proc/{server.pid}")
        pid = server.pid
    assert server.pid is None and not os.path.exists(f"/proc/{pid}")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)


def test_a_server_that_cannot_start_says_why(tmp_path):
    server = launch.RolloutServer(tmp_path / "nothing")
    with pytest.raises(launch.ServerFailed, match="(?s)ended with exit code 3:.*config.json"):
        server.start()
    assert server.pid is None
    with pytest.raises(launch.ServerFailed, match="(?s)exit code 2:.*max_queued_groups"):
        launch.RolloutServer(tmp_path, settings={"server.max_queued_group": 3}).start()
