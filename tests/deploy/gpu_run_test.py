"""deploy/gpu/run.sh on a target whose programs are stand-ins: order, limits and the page of the quick pass."""

import os
import pathlib
import re
import subprocess
import tarfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "deploy/gpu/run.sh"

# A stand-in for the Python of the target. It reports a device and a LibTorch, makes "models", and accepts all arguments.
PYTHON = """#!/bin/bash
if [[ $1 == *random_model.py ]]; then mkdir -p "$3" && touch "$3/model.safetensors"; fi
cat >/dev/null
echo Fake-Device-9000
"""


# A stand-in for a program; as a test of GoogleTest, it has two suites.
PROGRAM = """#!/bin/bash
[[ $1 != --gtest_list_tests ]] || { printf 'First/0.  # TypeParam = float\\n  A\\n  B\\nSecond.\\n  C\\n'; exit; }
"""


def plan():
    out = subprocess.run(["bash", SCRIPT, "plan"], capture_output=True, text=True, check=True).stdout
    return [(name, int(seconds)) for name, seconds in re.findall(r"\| (.*?) \| at most (\d+) s \|", out)]


def test_the_quick_pass_fits_into_eight_minutes_with_unpacking():
    steps = plan()
    assert sum(seconds for _, seconds in steps) + 30 <= 480
    names = [name for name, _ in steps]
    for wanted in ("kernels, engine and trainer agree with the CPU", "NCCL", "ten GRPO steps", "supervised trainers", "the exact null", "decode benchmark", "push benchmark"):
        assert any(name.startswith(wanted) for name in names), wanted


def bundle(folder, programs):
    """The parts of a bundle in which every program is the shell script of `programs`, or one that prints its name."""
    stage = folder / "stage"
    for part in ("bin", "results", "deploy/gpu", "tests"):
        (stage / part).mkdir(parents=True)
    tests = [name for names in ("KERNEL_TESTS", "ENGINE_TESTS")
             for name in re.search(rf"^{names}=\((.*?)\)", SCRIPT.read_text(), re.M | re.S)[1].split()]
    for name in [*tests, "collective_worker", "tandem", "rollout_server", "trainer"]:
        program = stage / "bin" / name
        program.write_text(programs.get(name, f"{PROGRAM}echo {name} ran: $*\n"))
        program.chmod(0o755)
    (stage / "deploy/gpu/run.sh").write_text(SCRIPT.read_text())
    (stage / "COMMIT").write_text("abc\n")
    (stage / "SOURCE_DIR").write_text(f"{REPOSITORY}\n")
    parts = folder / "parts"
    parts.mkdir()
    with tarfile.open(parts / "tandem-gpu.part-aa", "w:xz") as tar:
        tar.add(stage, ".")
    (parts / "run.sh").write_text(SCRIPT.read_text())
    subprocess.run("sha256sum tandem-gpu.part-* >SHA256SUMS", shell=True, check=True, cwd=parts)
    return parts


def run_quick(folder, programs=None):
    parts = bundle(folder, programs or {})
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    # ldd does not work on a shell script. This stand-in finds all libraries.
    (folder / "ldd").write_text("#!/bin/bash\necho ok\n")
    (folder / "ldd").chmod(0o755)
    ran = subprocess.run(
        ["bash", parts / "run.sh", "on-target", folder / "target"], capture_output=True, text=True,
        env={**os.environ, "QUICK": "1", "PYTHON": str(python), "PATH": f"{folder}:{os.environ['PATH']}"}, check=False)
    return ran, sorted(path.name for path in (folder / "target/results").iterdir()), folder / "target/results"


def test_the_quick_pass_leaves_one_page_with_every_step_and_what_it_printed(tmp_path):
    ran, files, results = run_quick(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [re.sub("^[0-9-]*", "", file) for file in files] == ["fake-device-9000.log", "fake-device-9000.md", "suites"]
    page = (results / files[1]).read_text()
    for name, _ in plan():
        assert f"| {name} | passed |" in page, page
    assert "tandem ran: bench train --device cuda --model models/0.5b" in page
    assert "tandem ran: bench push --device cuda" in page
    assert "engine_gpu_tests First/0: passed" in page and "engine_gpu_tests Second: passed" in page


def test_a_suite_that_fails_is_named_on_the_page_and_the_pass_goes_on(tmp_path):
    ran, files, results = run_quick(tmp_path, {
        "common_kernel_gpu_tests": PROGRAM + "[[ $* != *Second* ]] || { echo row 3 is off; exit 1; }\n"})
    assert ran.returncode == 1
    page = (results / files[1]).read_text()
    assert "| kernels, engine and trainer agree with the CPU | FAILED (1) |" in page
    assert "common_kernel_gpu_tests Second: FAILED (1)" in page and "row 3 is off" in page
    assert "common_kernel_gpu_tests First/0: passed" in page and "engine_gpu_tests Second: passed" in page
    assert "| push benchmark | passed |" in page


def test_a_pass_without_time_says_so(tmp_path):
    parts = bundle(tmp_path, {})
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    subprocess.run(["bash", parts / "run.sh", "on-target", tmp_path / "target"], capture_output=True, check=True,
                   env={**os.environ, "QUICK": "1", "QUICK_SECONDS": "0", "PYTHON": str(python)})
    page = next((tmp_path / "target/results").glob("*.md")).read_text()
    assert page.count("not run: no time is left") == len(plan())


def test_every_flag_that_the_script_gives_a_benchmark_is_one_of_it():
    """Without a device, benchmarks do not run, so only this test finds a renamed flag."""
    commands = re.findall(r"bin/tandem (bench \w+)((?:[^\n]*\\\n)*[^\n]*)", SCRIPT.read_text())
    assert len(commands) >= 6
    for command, words in commands:
        shown = subprocess.run([pathlib.Path(os.environ["TANDEM_BIN"]) / "tandem", *command.split(), "--help"],
                               capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"--[a-z-]+", shown))
        given = set(re.findall(r"(?<= )--[a-z-]+", words))
        assert given <= known, f"tandem {command} has no {sorted(given - known)}"
