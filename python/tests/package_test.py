"""pip installs the package into a venv without a network, its types are complete, and it says what it depends on."""
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv

import pytest
from conftest import ROOT

import tandem_rl

CODE = """
import importlib.util, pathlib, sys, tandem_rl
from tandem_rl.export import areal_hook, skyrl, slime, trl_callback, verl, verl_hook
place = pathlib.Path(tandem_rl.__file__).parent
print(place, (place / "py.typed").is_file(), len(tandem_rl.read_records(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, as setuptools leaves build/ and an egg-info in the tree it builds from."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "python", folder / "python", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index",
                    "-w", folder, folder / "python"], check=True, timeout=120)
    return next(folder.glob("tandem_rl-*.whl"))


def test_pip_installs_it_and_it_reads_a_file(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel],
                   check=True, timeout=120)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    (site / "numpy_of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    file = ROOT / "tests/testdata/foreign/format3/records.jsonl"
    done = subprocess.run([python, "-c", CODE, file], check=True, text=True, capture_output=True, cwd=tmp_path, timeout=60)
    place, is_typed, rows = done.stdout.split()
    assert pathlib.Path(place) == site / "tandem_rl" and is_typed == "True" and rows == "3"


def test_numpy_is_all_that_it_depends_on():
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    assert [requirement.split(">")[0] for requirement in project["dependencies"]] == ["numpy"]
    assert {"pandas", "parquet", "notebook"} <= set(project["optional-dependencies"])
    assert set(tandem_rl.__all__) == {"Records", "RecordsError", "RowFacts", "TopTokens", "read_records", "write_records"}


def test_the_types_are_complete(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", "--cache-dir", tmp_path,
                           "tandem_rl"], cwd=ROOT / "python", text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout
