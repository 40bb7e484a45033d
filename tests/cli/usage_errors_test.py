"""A wrong command line gives exit code 2 in every program and script, before anything is done."""
import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from forked_tandem import forked_tandem

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])


def call(*arguments, cwd=None):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=120, check=False, cwd=cwd,
                          stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that the command lines below name: a model, a line of data, a run with captures."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "text.txt").write_text("one and one is two. two and two is four.\n" * 40)
    (folder / "data.jsonl").write_text(json.dumps({"prompt": "one", "answer": "two"}) + "\n")
    done = forked_tandem("init", "--out", "model", "--text", "text.txt", "--hidden", 32, "--layers", 1, "--heads", 2,
                         "--kv-heads", 1, "--intermediate", 48, "--vocab", 280, "--context", 64, cwd=folder)
    assert done.returncode == 0, done.stderr
    for step in (2, 10):
        (folder / "run/captures" / f"step_{step}").mkdir(parents=True)
    (folder / "empty_run").mkdir()
    for run in ("run", "empty_run"):
        (folder / run / "run.json").write_text("{}")
    return folder


# Mistakes that only the command itself can find. tests/cli/commands_test.cc has wrong flags of every command.
WRONG = {
    "generate --model model --top-p 2": "--top-p",
    "generate --model model --min-new-tokens 9 --max-new-tokens 3": "min_new_tokens",
    "score --model model --engine trainer --top-k 3": "leave them out with --engine trainer",
    "eval --model model --data data.jsonl --reward number_answer=x": "want NAME=WEIGHT",
    "eval --model model --data data.jsonl --reward nobody": "nobody",
    "eval --model model --data data.jsonl --columns prompt": "want ROLE=COLUMN, for instance prompt=problem",
    "sample --model model --data data.jsonl --out rows --columns promt=prompt": "no 'promt'; want prompt, answer, system_prompt, tools; did you mean 'prompt'?",
    "data data.jsonl --template x": "data.template has no {COLUMN}",
    "data data.jsonl --format verk": "verk",
    "data data.jsonl --set trainer.seed=3": "--set changes a run file, and data.jsonl is data: use the flags",
    "sft --model model --data data.jsonl --out tuned --tools-file none.json": "none.json",
    "init --out fresh --text text.txt --hidden 30 --heads 4": "does not divide by --heads 4",
    "init --out model --text text.txt": "holds a model already",
    "sft --model model --data data.jsonl --out model": "holds a model already",
    "export model --out model": "holds a model already",
    "drift capture 127.0.0.1:1 --model model --data data.jsonl --out run": "run exists",
    "drift attribute run": "run is a run; name one of its captures:\n  run/captures/step_2\n  run/captures/step_10\n",
    "drift attribute empty_run": "empty_run is a run without captures: a run with trainer.capture.every=N",
    "drift replay run": "run/captures/step_10",
    "drift replay run/captures/step_2 --methods nobody": "nobody",
    "drift attribute run/captures/step_2 --json out.json": "--json-out FILE writes one",
    f"bench train --model model --device cuda --peer '{SOURCE}/tests/bench/peers/trl.py'": "leave out --device cuda",
    "bench rollout --model model --cases nothing-8": "nothing-8",
    "bench simulate --split 4": "want TRAINER:ROLLOUT",
    "status": "status of what?",
    "certs": "--out is required",
    "logs": "sources is required",
    "run": "config is required",
    "run --set a=1 b=2": "b=2 is a setting and no run file",
    "run run.yaml --set a=1 b=2": "unknown argument b=2: every setting takes a --set of its own, --set b=2",
    "drift inject b=2 --dial temperature=0.9": "b=2 is a setting and no run file",
    "render slurm run.yaml --set a=1 b=2": "--set b=2",
    "ranks --per-node 2 -- no_such_program": "no such program",
    "serve --host 127.0.0.1 --listen 127.0.0.1:1": "--listen",
    "serve --model model --port 70000": "--port",
    "serve --set server.model=model server.log.format=json": "--set server.log.format=json",
    "serve --model model --dtype fp8": "{fp32,bf16}",
    "train --set trainer.steps=1 trainer.seed=2": "--set trainer.seed=2",
    "train --resume --clean": "--resume",
    "serve": "server.model is empty",
    "train": "trainer.model is empty",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_exit_code_2_and_named(place, line):
    done = forked_tandem(*shlex.split(line), cwd=place)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert WRONG[line] in done.stderr
    assert done.stdout == ""


STEERS = "no\x1b[31msuch"  # printed unchanged, this name would colour the terminal red


# Every way in which a command ends with an error. If its command line cannot be parsed, the whole command is named.
@pytest.mark.parametrize("line", [
    ["run", STEERS], ["demo", "--set", STEERS], ["drift", "inject", STEERS, "--dial", "temperature=0.9"],
    ["drift", "replay", "run/captures/step_2", "--methods", STEERS], ["drift", "attribute", STEERS],
    ["bench", "serve", STEERS], ["bench", "simulate", "--check", STEERS], ["bench", "rollout", "--model", STEERS],
    ["bench", "train", "--model", STEERS], ["ranks", "--per-node", "2", "--", STEERS], ["render", "slurm", STEERS],
    ["render", "k8s", STEERS], ["logs", STEERS], ["status", STEERS], ["export", STEERS, "--out", "new"],
    ["serve", STEERS], ["train", STEERS], ["serve", "--model", STEERS], ["run", "x.yaml", "--" + STEERS]], ids=" ".join)
def test_every_command_says_what_went_wrong_in_one_form_that_steers_no_terminal(place, line):
    done = forked_tandem(*line, cwd=place)
    assert done.returncode != 0
    assert "\x1b" not in done.stderr + done.stdout
    program = {"serve": "rollout_server", "train": "trainer"}.get(line[0], "tandem")
    # Errors in the words of a command line start with the name of the command, others with that of the program.
    said = next(text for text in done.stderr.splitlines()
                if text.startswith((program + ": ", f"{program} {line[0]}: unknown")))
    assert "no\\u001b[31msuch" in said, done.stderr
    assert not any(code in said for code in ("INVALID_ARGUMENT:", "NOT_FOUND:", "UNAVAILABLE:")), done.stderr


SCRIPTS = ["deploy/setup/install.sh", "deploy/setup/build_kubernetes.sh", "deploy/setup/copy_programs.sh",
           "deploy/container/build.sh", "deploy/container/compile.sh", "deploy/container/linked_parts.sh", "deploy/gpu/run.sh", "tests/fuzz/run.sh"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_refuses_what_it_does_not_know_with_its_usage(script, tmp_path):
    done = call(SOURCE / script, "--no-such-flag", cwd=tmp_path)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert script in done.stderr, "its usage"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["examples/python_client.py", "tests/mutants/run_mutants.py",
                                    "python/tandem_rl/demo_model.py", "deploy/container/sbom.py",
                                    "deploy/release/build_wheel.py", "deploy/release/build_tarball.py", "deploy/release/release.py"])
def test_a_python_program_refuses_what_it_does_not_know(script, tmp_path):
    done = call(sys.executable, SOURCE / script, "--no-such-flag", cwd=tmp_path)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.startswith("usage: ")


def test_what_is_no_mistake_of_the_command_line_is_another_code(place):
    assert forked_tandem("score", "--model", "absent", cwd=place).returncode == 3
    assert forked_tandem("drift", "attribute", "run/captures/step_2", cwd=place).returncode == 3
    assert forked_tandem("status", "127.0.0.1:1", "--timeout", "1", cwd=place).returncode == 4
