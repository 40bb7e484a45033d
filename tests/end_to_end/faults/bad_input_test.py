"""The rows of "Bad input" in docs/dev/verification.md with the real programs: exit code, message, and that nothing is lost."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
import small_run

from rollout_client import history_arguments
from waiting import wait_until

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
SERVER, TRAINER, TANDEM = BIN / "rollout_server", BIN / "trainer", BIN / "tandem"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def config(model, tmp_path):
    return small_run.write_config(tmp_path, model)


def call(*arguments, env=None):
    """(exit code, stdout + stderr) of a program that ends by itself."""
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=240,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def serving(model, listen="127.0.0.1:0"):
    """A rollout server as (process, address). It is killed at the end if it still runs."""
    process = subprocess.Popen([str(SERVER), "--model", str(model), "--dtype", "fp32", "--listen", listen, *history_arguments()],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on "), (line, process.poll())
        yield process, line.split()[-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address(model):
    """The address of a server for trainers that end by themselves and release it. Where the launcher is not what is tested,
    a trainer at this server takes a third of the processor time of `tandem run`."""
    with serving(model) as (_, found):
        yield found


@contextlib.contextmanager
def background(log, *arguments, env=None):
    """A program that runs during the test, with its output in the file `log`."""
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([str(a) for a in arguments], stdout=file, stderr=subprocess.STDOUT,
                                   env={**os.environ, **(env or {})})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def num_steps(folder):
    return len(small_run.steps(folder)) if (folder / "runs/small/metrics.jsonl").exists() else 0


def last_checkpoint(folder):
    return (folder / "runs/small/checkpoints/LATEST").read_text(encoding="utf-8").strip()


def exports(folder):
    """True if the last checkpoint of the run is complete; `tandem export` checks every tensor."""
    code, output = call(TANDEM, "export", folder / "runs/small", "--out", folder / "exported")
    return code == 0 and (folder / "exported/model.safetensors").exists(), output


# Configuration and flags.

def test_an_unknown_key_of_a_run_file_is_named_with_file_and_line(config, tmp_path):
    config.write_text(config.read_text().replace('"prompts_per_step"', '"prompts_per_stepp"'))
    line = 1 + config.read_text().split('"prompts_per_stepp"')[0].count("\n")
    for program in ([TANDEM, "run", config], [TRAINER, "--config", config, "--servers", "127.0.0.1:1"]):
        code, output = call(*program)
        assert code == 2, output
        assert f"{config}:{line}: unknown key 'trainer.prompts_per_stepp'" in output
        assert "'trainer.prompts_per_step'" in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("assignment, message", [
    ("trainer.steps", "--set trainer.steps: expected name=value"),
    ("trainer.steps=many", "trainer.steps: 'many' is not an integer"),
    ("trainer.stepps=3", "unknown key 'trainer.stepps'; the nearest valid name is 'trainer.steps'"),
    ("trainer.prompts_per_step=0", "trainer.prompts_per_step"),
    ("server.engine.dtype=fp8", "server.engine.dtype")])
def test_a_bad_set_is_refused_before_anything_starts(config, tmp_path, assignment, message):
    code, output = call(TANDEM, "run", config, "--set", assignment)
    assert code == 2, output
    assert message in output
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there_is_refused_before_a_run_is_opened(config, tmp_path):
    on_device = [TRAINER, "--config", config, "--servers", "127.0.0.1:1", "--set", "trainer.device=cuda"]
    code, output = call(*on_device, env={"CUDA_VISIBLE_DEVICES": ""})
    assert code == 3, output
    assert "trainer.device is cuda, and this " in output
    code, output = call(TRAINER, "--config", config, "--servers", "127.0.0.1:1", "--set",
                        "trainer.push.transport=collective", "--set", "trainer.push.group.backend=nccl")
    assert code == 3, output
    assert "trainer.push.group.backend is nccl, and this build has no CUDA" in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("program, flag, nearest", [(SERVER, "--modle", "--model"), (TRAINER, "--resum", "--resume"),
                                                     (TANDEM, "--verison", "--version")])
def test_a_wrong_flag_is_a_usage_error_that_names_the_nearest(program, flag, nearest):
    code, output = call(program, flag)
    assert code == 2
    assert f"unknown flag {flag}; did you mean {nearest}?" in output and "--help" in output


def test_a_run_file_that_is_not_there_is_named(tmp_path):
    for program in ([TANDEM, "run"], [TRAINER, "--config"], [SERVER, "--config"]):
        code, output = call(*program, tmp_path / "absent.yaml")
        assert code == 2, output
        assert f"{tmp_path}/absent.yaml: open failed: No such file" in output
        assert "it should be a YAML file of options: examples/ has some" in output


def test_a_report_of_a_missing_run_names_the_directory(tmp_path):
    code, output = call(TANDEM, "report", tmp_path / "nowhere")
    assert code == 3
    assert f"run directory not found: {tmp_path}/nowhere" in output


def test_a_run_is_neither_overwritten_nor_resumed_by_mistake(config, tmp_path):
    code, output = call(TANDEM, "run", config, "--resume")
    assert code == 2, output
    assert "no run to resume is there" in output
    assert small_run.run(config, "--set", "trainer.steps=1")[0] == 0
    before = (tmp_path / "runs/small/metrics.jsonl").read_text()
    code, output = call(TANDEM, "run", config)
    assert code == 2, output
    assert "--resume goes on with it, --clean starts it anew" in output
    assert (tmp_path / "runs/small/metrics.jsonl").read_text() == before


# Models.

def truncated(model, folder):
    shutil.copytree(model, folder)
    os.truncate(folder / "model.safetensors", 300_000)
    return "model.safetensors: tensor 'model.layers.", "is the file truncated?"


def pickled(model, folder):
    shutil.copytree(model, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return "has pytorch_model.bin but no model.safetensors", "convert it with: python -c"


def disguised(model, folder):
    shutil.copytree(model, folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s." + bytes(64))
    return "model.safetensors: is a pickle file", "convert it with: python -c"


def unsupported(model, folder):
    shutil.copytree(model, folder)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("LlamaForCausalLM", "MambaForCausalLM").replace(
        '"model_type": "llama"', '"model_type": "mamba"'))
    return "config.json: model_type 'mamba' is not supported", "supported: llama (LlamaForCausalLM)"


def missing(model, folder):
    return str(folder), "config.json"


@pytest.mark.parametrize("damage", [missing, truncated, pickled, disguised, unsupported])
def test_a_bad_model_is_refused_by_every_program(model, config, tmp_path, damage):
    folder = tmp_path / "bad"
    names, advice = damage(model, folder)
    sets = ["--set", f"trainer.model={folder}"]
    for program in ([SERVER, "--model", folder, "--listen", "127.0.0.1:0"],
                    [TRAINER, "--config", config, "--servers", "127.0.0.1:1", *sets],
                    [TANDEM, "run", config, *sets, "--set", f"server.model={folder}"]):
        code, output = call(*program)
        assert code == 3, output
        assert names in output and advice in output
    assert not (tmp_path / "runs/small/events.jsonl").exists()


# Data.

@pytest.mark.parametrize("line, message", [
    ('{"prompt": "x", "answer"', "not JSON"), ("[1]", "is array, not an object"),
    ('{"prompt": "x"}', 'no "answer"')])
def test_a_malformed_line_of_the_prompts_is_named(config, tmp_path, line, message):
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    code, output = call(TRAINER, "--config", config, "--servers", "127.0.0.1:1", "--set",
                        f"trainer.data.train={data}")
    assert code == 3, output
    assert f"{data}:2: {message}" in output and 'want {"prompt"' in output
    assert not (tmp_path / "runs/small/events.jsonl").exists()


def test_a_prompt_over_the_context_is_named_with_the_numbers(config, tmp_path):
    code, output = small_run.run(config, "--set", "trainer.sampling.max_new_tokens=510")
    assert code == 3, output
    assert f"{tmp_path}/train.jsonl:" in output
    assert "prompt tokens and sampling.max_new_tokens 510 exceed the model's context of 512" in output


def test_only_this_start_is_quoted_from_a_log(config, tmp_path):
    for name in ("first", "second"):
        data = tmp_path / f"{name}.jsonl"
        data.write_text("[1]\n")  # the trainer finds it; a missing file is found before a process starts
        code, output = small_run.run(config, "--set", f"trainer.data.train={data}")
        assert code == 3, output
        assert f"{data}:1: is array, not an object" in output
    assert "first.jsonl" not in output


# Servers.

def test_what_a_path_or_a_file_holds_does_nothing_to_a_terminal(model, tmp_path):
    for path in (tmp_path / "\x1b[31mred\nrollout_server: FAKE", ):
        code, output = call(SERVER, "--model", path, "--listen", "127.0.0.1:0")
        assert code == 3, output
        assert "\\u001b[31mred\\nrollout_server: FAKE" in output and "\x1b" not in output, output
    escaped = tmp_path / "escaped.yaml"
    escaped.write_bytes(b"server:\n  m\x1b[31model: x\n")
    for program in ([SERVER, "--config"], [TRAINER, "--config"]):
        code, output = call(*program, escaped)
        assert code == 2 and "\x1b" not in output, output


def test_an_observe_port_in_use_is_a_usage_error_of_both_programs(model, config):
    with serving(model) as (_, address):
        for program in ([SERVER, "--model", model, "--listen", "127.0.0.1:0", "--set", f"server.observe_listen={address}"],
                        [TRAINER, "--config", config, "--servers", "127.0.0.1:1", "--set", f"trainer.observe_listen={address}"]):
            code, output = call(*program)
            assert code == 2, output
            assert f"observe address {address} cannot be bound" in output


def test_a_server_that_waits_for_its_model_stops_when_it_is_told_to(model, tmp_path):
    waiting = tmp_path / "waiting"
    shutil.copytree(model, waiting)
    (waiting / "model.safetensors").unlink()
    os.mkfifo(waiting / "model.safetensors")  # nobody writes to it, so opening it blocks forever
    log = tmp_path / "log"
    with background(log, SERVER, "--model", waiting, "--listen", "127.0.0.1:0", "--set",
                    "server.observe_listen=127.0.0.1:0") as process:
        wait_until(lambda: "observe port" in log.read_text(encoding="utf-8"), "the observe port")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=240) == 0
        assert "stopped while the model was being loaded" in log.read_text(encoding="utf-8")


def test_a_trainer_that_waits_for_its_model_stops_when_it_is_told_to(model, config, tmp_path):
    waiting = tmp_path / "waiting"
    shutil.copytree(model, waiting)
    (waiting / "model.safetensors").unlink()
    os.mkfifo(waiting / "model.safetensors")
    log = tmp_path / "log"
    with background(log, TRAINER, "--config", config, "--servers", "127.0.0.1:1", "--set", f"trainer.model={waiting}",
                    "--set", "trainer.observe_listen=127.0.0.1:0") as process:
        wait_until(lambda: "observe port" in log.read_text(encoding="utf-8"), "the observe port")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=240) == 143
        assert "stopped while the model was being loaded" in log.read_text(encoding="utf-8")


def test_a_port_in_use_ends_the_run_with_the_address(model, config):
    with serving(model) as (_, address):
        code, output = small_run.run(config, "--set", f"launch.base_port={address.split(':')[-1]}")
        assert code == 2, output
        assert f"cannot listen on {address}: the port is in use" in output
        code, output = call(TRAINER, "--config", config, "--servers", address, "--set",
                            f"trainer.observe_listen={address}")
        assert code == 2, output
        assert f"observe address {address} cannot be bound" in output


def test_a_dead_server_at_the_start_is_waited_for_with_warnings_then_exit_4(config, tmp_path):
    code, output = call(TRAINER, "--config", config, "--servers", "127.0.0.1:1", "--set",
                        "trainer.client.server_patience_seconds=5")
    assert code == 4, output
    waited = [float(line.split("waited_s=")[1].split()[0]) for line in output.splitlines()
              if "no rollout server answers; waiting" in line]
    assert len(waited) == 2 and waited[1] > 1.9 * waited[0], output
    assert "no rollout server for 5 s (client.server_patience_seconds): 127.0.0.1:1: " in output
    assert small_run.events(tmp_path, "run_failed")[0]["exit_code"] == 4


LONG = ("--set", "trainer.steps=100000")


def test_a_second_trainer_is_refused_and_the_first_goes_on(model, config, tmp_path):
    with serving(model) as (_, address):
        with background(tmp_path / "first.log", TRAINER, "--config", config, "--servers", address, *LONG) as first:
            wait_until(lambda: num_steps(tmp_path) >= 1, "the first trainer makes no step")
            owner = json.loads((tmp_path / "runs/small/run.json").read_text())["run_id"]
            code, output = call(TRAINER, "--config", config, "--servers", address, "--set",
                                "trainer.run.name=second")
            assert code == 5, output
            assert f"rollout server {address} belongs to run '{owner}'" in output
            assert "stop that run, wait for its lease to end, or name another server" in output
            seen = num_steps(tmp_path)
            wait_until(lambda: num_steps(tmp_path) > seen + 1, "the first trainer stands still")
            assert first.poll() is None


def test_a_server_lost_in_mid_run_is_waited_for_then_exit_4_with_a_checkpoint(model, config, tmp_path):
    log = tmp_path / "trainer.log"
    with serving(model) as (server, address):
        with background(log, TRAINER, "--config", config, "--servers", address, *LONG, "--set",
                        "trainer.client.server_patience_seconds=5") as trainer:
            wait_until(lambda: num_steps(tmp_path) >= 2, "no step")
            server.kill()
            assert trainer.wait(timeout=120) == 4, log.read_text()
    output = log.read_text()
    assert 1 <= output.count("no rollout server answers; waiting") <= 2  # after 2 and 4 s of 5
    assert f"no rollout server for 5 s (client.server_patience_seconds): {address}: " in output
    step = small_run.events(tmp_path, "checkpoint_saved")[-1]["step"]
    assert last_checkpoint(tmp_path) == f"step_{step}"
    # A step whose push failed because of the dead server keeps its weights and has no line of metrics.
    assert step - num_steps(tmp_path) in (0, 1)
    whole, output = exports(tmp_path)
    assert whole, output


def test_a_run_goes_on_with_a_server_started_again_at_its_address(model, config, tmp_path):
    log = tmp_path / "trainer.log"
    with serving(model) as (server, address):
        with background(log, TRAINER, "--config", config, "--servers", address, *LONG) as trainer:
            wait_until(lambda: num_steps(tmp_path) >= 2, "no step")
            server.kill()
            wait_until(lambda: "no rollout server answers; waiting" in log.read_text(), "no warning")
            seen = num_steps(tmp_path)
            with serving(model, address):
                wait_until(lambda: num_steps(tmp_path) > seen + 2, log.read_text)
            trainer.kill()
            trainer.wait()
    assert [event["message"].split(":")[0] for event in small_run.events(tmp_path, "server_back")] == ["127.0.0.1"]
    steps = [step["step"] for step in small_run.steps(tmp_path)]
    assert len(steps) == len(set(steps)) and steps == sorted(steps)
    # Later groups were sampled from the weights of a new push, and not from those that the server loaded.
    assert all(step["drift/mean_abs_delta"] <= 1e-5 for step in small_run.steps(tmp_path))


# Storage.

EVERY_STEP = ("--set", "trainer.checkpoint.every=1")


def test_a_place_that_cannot_be_written_to_is_exit_7_before_a_server_is_asked(config, tmp_path):
    (tmp_path / "file").touch()
    for place in ("/sys/runs", tmp_path / "file"):
        out = ["--set", f"trainer.run.out={place}"]
        for program in ([TANDEM, "run", config, *out], [TRAINER, "--config", config, "--servers", "127.0.0.1:1", *out]):
            code, output = call(*program)
            assert code == 7 and str(place) in output and "127.0.0.1:1" not in output, output


@pytest.mark.parametrize("failure, message", [
    ("ENOSPC:1000", "No space left on device; free space and try again"), ("EIO:1000", "write failed: Input/output error"),
    ("EIO:fsync", "fsync failed: Input/output error"), ("ENOSPC:fsync", "fsync failed: No space left on device")])
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(config, address, tmp_path, failure, message):
    code, output = call(TRAINER, "--config", config, "--servers", address, *EVERY_STEP,
                        env={"TANDEM_FAIL_WRITE": f"checkpoints/step_2.tmp:{failure}"})
    assert code == 0, output  # step 3 was saved, so nothing is lost
    failed = small_run.events(tmp_path, "checkpoint_failed")
    assert [event["step"] for event in failed] == [2]
    assert message in failed[0]["message"]
    assert last_checkpoint(tmp_path) == "step_3"
    assert sorted(path.name for path in (tmp_path / "runs/small/checkpoints").iterdir()) == ["LATEST", "step_1", "step_3"]


def test_a_last_checkpoint_that_finds_the_disk_full_is_exit_7(config, tmp_path):
    code, output = call(TANDEM, "run", config, *EVERY_STEP,
                        env={"TANDEM_FAIL_WRITE": "checkpoints/step_3.tmp:ENOSPC:1000"})
    assert code == 7, output
    assert "the weights of step 3 could not be saved" in output
    assert "the checkpoint of step 2 stands" in output and "--resume" in output
    assert last_checkpoint(tmp_path) == "step_2"
    whole, output = exports(tmp_path)
    assert whole, output
    code, output = small_run.run(config, "--resume")
    assert code == 0, output
    assert [step["step"] for step in small_run.steps(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("path, after_bytes, lost", [
    ("rollouts/step_2", 100, {2}), ("metrics.jsonl", 100, {1}), ("events.jsonl", 600, {1})])
def test_a_record_that_finds_the_disk_full_is_exit_7_and_can_be_resumed(config, address, tmp_path, path, after_bytes, lost):
    code, output = call(TRAINER, "--config", config, "--servers", address, *EVERY_STEP,
                        env={"TANDEM_FAIL_WRITE": f"/{path}:ENOSPC:{after_bytes}"})
    assert code == 7, output
    assert f"{path}" in output and "No space left on device; free space and try again" in output
    code, output = call(TRAINER, "--config", config, "--servers", address, "--resume")
    assert code == 0, output
    # The line for which there was no space is lost, but not the weights of its step.
    assert {1, 2, 3} - {step["step"] for step in small_run.steps(tmp_path)} <= lost
    assert last_checkpoint(tmp_path) == "step_3"


def test_a_full_file_system_stops_the_run_and_keeps_a_checkpoint(config, tmp_path):
    """On a tmpfs of 5 MiB in a mount namespace, or on the disk if mounting is not allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=5m none "{disk}" && "$@"', "sh"]
    mounted = subprocess.run([*mount, "true"], capture_output=True).returncode == 0
    script = (f'"$1" run "{config}" --set "trainer.run.out={disk}" --set trainer.checkpoint.every=1 '
              '--set trainer.checkpoint.keep=100 --set trainer.steps=40; code=$?; '
              f'"$1" export "{disk}/small" --out "{tmp_path}/exported" >&2 || exit 99; exit $code')
    code, output = call(*(mount if mounted else []), "sh", "-c", script, "sh", TANDEM)
    assert code == (7 if mounted else 0), output
    assert not mounted or "No space left on device" in output
    assert (tmp_path / "exported/model.safetensors").exists(), output


# Signals and dead children: no process is left, and --resume continues the run.

def children(pid):
    """The ids of the processes that `pid` started."""
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def runs(pid):
    """True if the process exists and is not a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def named(pids, name):
    return next(p for p in pids if pathlib.Path(f"/proc/{p}/comm").read_text().startswith(name))


def goes_on(config, folder, address=None):
    """--resume trains two more steps, and each step has one line in the metrics: with the launcher, or at this server."""
    saved = int(last_checkpoint(folder).removeprefix("step_"))
    start = [TANDEM, "run", config] if address is None else [TRAINER, "--config", config, "--servers", address]
    code, output = call(*start, "--resume", "--set", f"trainer.steps={saved + 2}")
    assert code == 0, output
    assert [step["step"] for step in small_run.steps(folder)] == list(range(1, saved + 3))


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_a_checkpoint_exits_with_its_number_and_leaves_no_process(config, address, tmp_path, number, code):
    with background(tmp_path / "log", TANDEM, "run", config, *LONG) as tandem:
        wait_until(lambda: num_steps(tmp_path) >= 2, "no step")
        pids = children(tandem.pid)
        assert len(pids) == 2
        tandem.send_signal(number)
        assert tandem.wait(timeout=120) == code, (tmp_path / "log").read_text()
    assert not any(runs(pid) for pid in pids)
    assert small_run.events(tmp_path, "run_stopped")
    assert last_checkpoint(tmp_path) == f"step_{num_steps(tmp_path)}"
    goes_on(config, tmp_path, address)


def test_sigterm_to_a_trainer_alone_is_143_too(model, config, tmp_path):
    with serving(model) as (server, address):
        with background(tmp_path / "log", TRAINER, "--config", config, "--servers", address, *LONG) as trainer:
            wait_until(lambda: num_steps(tmp_path) >= 1, "no step")
            trainer.terminate()
            assert trainer.wait(timeout=120) == 143
        assert server.poll() is None
        code, output = call(TANDEM, "status", "--servers", address)
        assert code == 0 and "owner none" in output, output  # released at once, so there is no lease to wait for


def test_a_killed_server_of_the_launcher_is_exit_9_after_the_trainer_saved(config, address, tmp_path):
    with background(tmp_path / "log", TANDEM, "run", config, *LONG, "--set", "launch.max_restarts=0") as tandem:
        wait_until(lambda: num_steps(tmp_path) >= 2, "no step")
        pids = children(tandem.pid)
        os.kill(named(pids, "rollout_server"), signal.SIGKILL)
        assert tandem.wait(timeout=120) == 9, (tmp_path / "log").read_text()
    assert "rollout_server 0 ended with signal 9 (Killed)" in (tmp_path / "log").read_text()
    assert not any(runs(pid) for pid in pids)
    goes_on(config, tmp_path, address)


def test_a_killed_launcher_takes_its_processes_along_and_the_trainer_saves(config, tmp_path):
    with background(tmp_path / "log", TANDEM, "run", config, *LONG) as tandem:
        wait_until(lambda: num_steps(tmp_path) >= 2, "no step")
        pids = children(tandem.pid)
        tandem.kill()
        tandem.wait()
        wait_until(lambda: not any(runs(pid) for pid in pids), "an orphan is left")
    goes_on(config, tmp_path)
