"""`tandem run` with models by their names on the Hugging Face Hub: what it says, what it writes down, and what a resumed run uses."""
import json
import pathlib
import subprocess
import sys

import pytest
import small_run
import yaml


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model") / "model")


def tandem(*arguments):
    done = subprocess.run([str(small_run.TANDEM), *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


def config_by_name(folder, model, name, **trainer):
    """The run file of small_run with names in place of directories."""
    path = small_run.write_config(folder, model, steps=2, deterministic=True, checkpoint={"every": 1}, **trainer)
    config = json.loads(path.read_text())
    config["trainer"]["model"] = config["server"]["model"] = name
    path.write_text(json.dumps(config))
    return path


def test_a_run_takes_its_model_by_name_and_writes_down_the_commit(fake_hub, model, tmp_path):
    sha = fake_hub.add_directory("models", "org/tiny", model)
    config = config_by_name(tmp_path, model, "org/tiny")

    code, output = small_run.run(config)
    assert code == 3 and "model org/tiny: no such directory" in output and "tandem fetch org/tiny" in output, output

    assert tandem("fetch", "org/tiny")[0] == 0
    snapshot = fake_hub.cache / "models--org--tiny" / "snapshots" / sha
    code, output = small_run.run(config, "--dry-run")
    assert code == 0, output
    assert f"# trainer.model: org/tiny@{sha} -> {snapshot} (llama)" in output
    assert f"# server.model: org/tiny@{sha} -> {snapshot} (llama)" in output

    code, output = small_run.run(config)
    assert code == 0, output
    run = tmp_path / "runs" / "small"
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    assert resolved["trainer"]["model"] == resolved["server"]["model"] == f"org/tiny@{sha}"
    card = json.loads((run / "run.json").read_text())
    assert card["model"]["source"] == f"org/tiny@{sha} of the Hugging Face Hub"
    # The same run as with the directory.
    by_path = tmp_path / "path"
    by_path.mkdir()
    code, output = small_run.run(small_run.write_config(by_path, model, steps=2, deterministic=True, checkpoint={"every": 1}))
    assert code == 0, output
    assert [step["loss/total"] for step in small_run.steps(tmp_path)] == [step["loss/total"] for step in small_run.steps(by_path)]


def test_a_resumed_run_keeps_its_commit_when_the_branch_has_moved(fake_hub, model, tmp_path):
    old = fake_hub.add_directory("models", "org/tiny", model)
    assert tandem("fetch", "org/tiny")[0] == 0
    config = config_by_name(tmp_path, model, "org/tiny")
    code, output = small_run.run(config)
    assert code == 0, output

    files = {path.name: path.read_bytes() for path in pathlib.Path(model).iterdir()}
    settings = json.loads(files["config.json"])
    files["config.json"] = json.dumps({**settings, "rope_theta": 12345.0}).encode()
    new = fake_hub.add("models", "org/tiny", files)
    assert tandem("fetch", "org/tiny")[0] == 0

    code, output = small_run.run(config, "--resume", "--set", "trainer.steps=3")
    assert code == 0, output
    assert f"main is at commit {new} now; the run goes on with commit {old}, which it started with" in output
    assert yaml.safe_load((tmp_path / "runs" / "small" / "config.yaml").read_text())["trainer"]["model"] == f"org/tiny@{old}"
    assert len(small_run.steps(tmp_path)) == 3


def test_a_dry_run_names_the_field_that_refuses_an_architecture(fake_hub, model, tmp_path):
    files = {path.name: path.read_bytes() for path in pathlib.Path(model).iterdir()}
    settings = json.loads(files["config.json"])
    fake_hub.add("models", "org/gelu", {**files, "config.json": json.dumps({**settings, "hidden_act": "gelu"})})
    assert tandem("fetch", "org/gelu", "--any-architecture")[0] == 0
    code, output = small_run.run(config_by_name(tmp_path, model, "org/gelu"), "--dry-run")
    assert code == 3, output
    assert "cannot run: " in output and "hidden_act" in output


def test_other_commands_take_the_name_too(fake_hub, model, tmp_path):
    fake_hub.add_directory("models", "org/tiny", model)
    assert tandem("fetch", "org/tiny")[0] == 0
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Name a number:"}) + "\n")
    answers = []
    for name in ("org/tiny", str(model)):
        done = subprocess.run([str(small_run.TANDEM), "generate", "--model", name, "--max-new-tokens", "4", "--input", str(prompts)],
                              capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        answers.append([json.loads(line) for line in done.stdout.splitlines()])
    assert answers[0] == answers[1]
    code, output = tandem("plan", "--algorithm", "sft", "--model", "org/tiny")
    assert code == 0, output


def test_the_stand_in_hub_starts_from_the_command_line(model, tmp_path, monkeypatch):
    script = small_run.SOURCE / "tests" / "support" / "python" / "fake_hub.py"
    process = subprocess.Popen([sys.executable, str(script), "--model", f"org/tiny={model}"], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().strip()
        assert line.startswith("export HF_ENDPOINT=http://127.0.0.1:")
        monkeypatch.setenv("HF_ENDPOINT", line.partition("=")[2])
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        assert tandem("fetch", "org/tiny")[0] == 0
    finally:
        process.kill()
        process.wait()
