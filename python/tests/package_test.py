"""pip installs the package into a venv without a network, with what is generated from proto/; its sdist builds the same wheel; its
types are complete, and it says what it depends on."""
import email
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile

import pytest
from conftest import ROOT

import tandem_rl

GENERATED = {f"tandem_rl/_proto/{name}_{kind}" for name in ("rollout", "weights", "experience", "reward")
             for kind in ("pb2.py", "pb2.pyi", "pb2_grpc.py")}
CODE = """
import importlib.util, pathlib, sys, tandem_rl
from tandem_rl.export import areal_hook, skyrl, slime, trl_callback, verl, verl_hook
place = pathlib.Path(tandem_rl.__file__).parent
print(place, (place / "py.typed").is_file(), len(tandem_rl.read_records(sys.argv[1])))
"""
CLIENT = """
import tandem_rl.client
from tandem_rl._proto import experience_pb2, reward_pb2_grpc, rollout_pb2, weights_pb2_grpc
print(tandem_rl.client.RolloutClient("localhost:1").address, experience_pb2.ScoredGroup().prompt.index)
print(rollout_pb2.DESCRIPTOR.name, rollout_pb2.__file__)
"""
BUILD_SDIST = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"


def run(*command, **options):
    """What the program printed."""
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=120, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what the package is built from, as setuptools leaves build/ and an egg-info in the tree it builds from."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("python", "proto"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "*_pb2*"))
    return folder


def build_wheel(source, out):
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, source)
    return next(out.glob("tandem_rl-*.whl"))


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    return build_wheel(checkout / "python", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", BUILD_SDIST, folder, cwd=checkout / "python")
    return next(folder.glob("tandem_rl-*.tar.gz"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """The site-packages of a venv with the wheel, and with what else the tests have behind it."""
    folder = tmp_path_factory.mktemp("site")
    venv.create(folder / "venv", with_pip=False)
    run(sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "install", "-q", "--no-deps", "--no-index", wheel)
    packages = next((folder / "venv/lib").glob("python*/site-packages"))
    (packages / "packages_of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return packages


def run_in(site, *command, **options):
    """A program of the venv, in a folder from which nothing can be imported."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TANDEM_BIN")}
    return run(site.parents[2] / "bin" / command[0], *command[1:], cwd=site.parents[2], env=environment, **options)


def test_pip_installs_it_and_it_reads_a_file(site):
    place, is_typed, rows = run_in(site, "python", "-c", CODE, ROOT / "tests/testdata/foreign/format3/records.jsonl").split()
    assert pathlib.Path(place) == site / "tandem_rl" and is_typed == "True" and rows == "3"


def test_the_installed_package_has_the_client_and_what_it_was_generated_from(site):
    address, index, name, place = run_in(site, "python", "-c", CLIENT).split()
    assert (address, index, name) == ("localhost:1", "0", "proto/rollout.proto")
    assert pathlib.Path(place) == site / "tandem_rl/_proto/rollout_pb2.py"


def test_the_wheel_asks_for_what_its_generated_modules_need(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
    assert GENERATED <= names and not any(name.startswith(("proto/", "tests/", "setup")) for name in names)
    needs = [line for line in metadata.get_all("Requires-Dist") if "extra" not in line]
    assert sorted(line.partition(">")[0].partition("<")[0] for line in needs) == ["grpcio", "numpy", "protobuf"]
    assert any(line.startswith("protobuf") and ">=7" in line and "<9" in line for line in needs), needs


def test_the_sdist_is_enough_to_build_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path)
    assert "proto/rollout.proto" in names and "setup.py" in names and not GENERATED & names
    again = build_wheel(next(tmp_path.iterdir()), tmp_path)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {name: one.read(name) for name in one.namelist() if not name.endswith("/RECORD")} == {
            name: other.read(name) for name in other.namelist() if not name.endswith("/RECORD")}


def test_a_checkout_without_generated_modules_says_how_to_make_them(checkout):
    python = [sys.executable, "-c", "import tandem_rl.client"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "python")}
    failed = subprocess.run(python, cwd=checkout, env=environment, text=True, capture_output=True, timeout=60)
    assert failed.returncode != 0
    for words in ("pip install ./python", "PYTHONPATH=python python -m tandem_rl._proto.generate", "grpcio-tools"):
        assert words in failed.stderr
    others = "import tandem_rl, tandem_rl.rewards, tandem_rl.launch; tandem_rl.read_records"
    run(sys.executable, "-c", others, cwd=checkout, env=environment)
    try:
        said = run(sys.executable, "-m", "tandem_rl._proto.generate", cwd=checkout, env={**environment, "PYTHONPATH": "python"})
        assert said.startswith("12 files in ")
        run(*python, cwd=checkout, env=environment)
    finally:
        for path in (checkout / "python/tandem_rl/_proto").glob("*_pb2*"):
            path.unlink()


def test_rewards_and_the_launcher_need_neither_numpy_nor_grpc(checkout):
    code = ("import sys; sys.modules.update(numpy=None, grpc=None, google=None)\n"
            "import tandem_rl.rewards, tandem_rl.launch")
    run(sys.executable, "-c", code, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout / "python")})


def test_numpy_and_grpc_are_all_that_it_depends_on():
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["dependencies"] and "dependencies" not in project, "setup.py has them"
    assert {"pandas", "parquet", "notebook"} <= set(project["optional-dependencies"])
    assert set(tandem_rl.__all__) == {"Records", "RecordsError", "RowFacts", "TopTokens", "read_records", "write_records"}


def test_the_types_are_complete(checkout, tmp_path):
    """With the generated modules, whose messages have types too."""
    shutil.copytree(checkout / "python", tmp_path / "python")
    shutil.copytree(checkout / "proto", tmp_path / "proto")
    run(sys.executable, "-m", "tandem_rl._proto.generate", cwd=tmp_path / "python", env={**os.environ, "PYTHONPATH": "."})
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", "--cache-dir",
                           tmp_path / "cache", "tandem_rl"], cwd=tmp_path / "python", text=True, capture_output=True, timeout=280,
                          env=environment)
    assert done.returncode == 0, done.stdout


USERS_TYPES = """
from typing import Any

from tandem_rl.environments import Observation, TextEnvironment
from tandem_rl.rewards import Reward, Score


class Longer(Reward):
    def __call__(self, completions: list[str], answer: list[str], **columns: Any) -> list[Score]:
        return [1.0, None, {"reward": 0.5, "parts": {"length": 0.5}}]


class Echo(TextEnvironment):
    def reset(self, seed: int) -> Observation:
        return "Begin."

    def step(self, text: str) -> tuple[Observation, float | None, bool]:
        return {"role": "user", "content": text}, None, False


Longer()([], [])
Echo().step(5)
"""


def test_bases_of_users_have_types(site, tmp_path):
    (tmp_path / "users.py").write_text(USERS_TYPES)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--python-executable", site.parents[2] / "bin/python",
                           "--cache-dir", tmp_path / "cache", "users.py"], cwd=tmp_path, text=True, capture_output=True, timeout=280,
                          env=environment)
    assert [line.split(": ", 1)[1] for line in done.stdout.splitlines()[:-1]] == [
        'error: Argument 1 to "step" of "Echo" has incompatible type "int"; expected "str"  [arg-type]'], done.stdout


def test_the_console_scripts_become_the_programs(site):
    """Each finds the program on PATH behind itself."""
    folder = site.parents[2] / "programs"
    folder.mkdir()
    for name in ("tandem", "rollout_server", "trainer"):
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" $TANDEM_PYTHON\nexit 7\n')
        (folder / name).chmod(0o755)
        path = f"{site.parents[2] / 'bin'}:{folder}"
        environment = {"PATH": f"{path}:/usr/bin:/bin"}
        done = subprocess.run([site.parents[2] / "bin" / name, "a b", "--c"], env=environment, text=True, capture_output=True, timeout=60)
        assert (done.stdout, done.returncode) == (f"{name} a b --c {site.parents[2]}/bin/python\n", 7), done.stderr
    missing = subprocess.run([site.parents[2] / "bin/tandem"], env={"PATH": str(site.parents[2] / "bin")}, text=True,
                             capture_output=True, timeout=60)
    assert missing.returncode == 127 and "make build" in missing.stderr and "Traceback" not in missing.stderr
