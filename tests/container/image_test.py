"""Builds the image with its recipe and runs the demo inside it as uid 65532 on a read-only root.

TANDEM_IMAGE_VARIANT is cpu (default) or cuda. The cuda variant also runs the demo on the CPU here.
"""
import json
import os
import pathlib
import re
import signal
import stat
import subprocess

import image_root
import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
MODEL = SOURCE / "models/smollm2-135m-instruct"
VARIANT = os.environ.get("TANDEM_IMAGE_VARIANT", "cpu")
TAG = f"localhost/tandem-test:{VARIANT}"
BUDGET_BYTES = {"cpu": 650e6, "cuda": 4500e6}[VARIANT]


@pytest.fixture(scope="module")
def store():
    made = image_root.Store()
    made.clear_up()
    made.make_base()
    return made


@pytest.fixture(scope="module")
def said(store, tmp_path_factory):
    return store.build(VARIANT, TAG, tmp_path_factory.mktemp("build") / "build.log")


@pytest.fixture(scope="module")
def image(store, said):
    with store.image(TAG) as opened:
        yield opened


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    os.chown(folder, 65532, 65532)
    return folder


def test_the_build_prints_the_size_and_how_to_run(said):
    assert re.search(rf"^image: {TAG}: [\d.]+ [MG]B$", said, re.M)
    assert "docker run --rm --read-only" in said


def test_the_programs_say_what_they_are(image):
    done = image.run("version")
    assert done.returncode == 0, done.stderr
    commit = image.config["Labels"]["org.opencontainers.image.revision"]
    assert re.fullmatch(r"[0-9a-f]{12}\+?", commit) and f"(commit {commit})" in done.stdout
    assert re.search(r"^LibTorch +2\.11\.0", done.stdout, re.M)
    for program in ("rollout_server", "trainer"):
        assert image.run("--help", entrypoint=[program]).returncode == 0


def test_they_run_as_nobody_else_on_a_root_that_refuses_writes(image):
    status = image.run(entrypoint=["cat", "/proc/self/status"]).stdout
    assert re.search(r"^Uid:\t65532\t65532\t65532\t65532$", status, re.M)
    assert re.search(r"^Gid:\t65532\t65532\t65532\t65532$", status, re.M)
    assert re.search(r"^CapEff:\t0+$", status, re.M) and re.search(r"^NoNewPrivs:\t1$", status, re.M)
    for place in ("/usr/local/bin/x", "/run/tandem/x", "/etc/tandem/x"):
        assert "Read-only file system" in image.run(entrypoint=["touch", place]).stderr
    assert image.run(entrypoint=["touch", "/tmp/x"]).returncode == 0


def test_the_demo_makes_two_steps(image, runs):
    done = image.run("demo", "--steps", 2, "--model", "/models/smollm2-135m-instruct", "--out", "/runs", "--name", "two",
                     "--set", "trainer.eval.at_start=false", "--set", "trainer.eval.at_end=false",
                     mounts=[(MODEL.parent, "/models", "ro"), (runs, "/runs", "rw")], timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [json.loads(line) for line in (runs / "two/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["push/version"]) for line in lines if "loss/total" in line] == [(1, 1), (2, 2)]
    assert (runs / "two/report.html").stat().st_uid == 65532


def test_a_server_that_is_process_one_ends_when_it_is_told_to(image):
    """Process 1 gets only signals for which it has a handler."""
    with subprocess.Popen(image.command("--model", "/models/smollm2-135m-instruct", "--listen", "127.0.0.1:0",
                                        entrypoint=["rollout_server"], mounts=[(MODEL.parent, "/models", "ro")]),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        for line in server.stdout:
            if line.startswith("listening on"):
                break
        inside = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
        os.kill(int(inside), signal.SIGTERM)
        server.stdout.read()
        assert server.wait(timeout=60) == 0


def test_nothing_inside_compiles_and_no_headers_are_left(image):
    tools = {"gcc", "g++", "cc", "c++", "cpp", "clang", "clang++", "nvcc", "rustc", "cargo", "ld", "as", "make",
             "cmake", "ninja", "protoc", "pip", "git", "curl", "wget"}
    found = [path for path in image.files() if path.suffix in {".a", ".o", ".h", ".hpp"} or
             (path.parent.name in {"bin", "sbin"} and re.sub(r"-\d+$", "", path.name) in tools)]
    assert not found, found


def test_python_runs_reward_functions(image, tmp_path):
    tmp_path.chmod(0o755)  # for user 65532
    (tmp_path / "my_reward.py").write_text("def score(completions, **kwargs): return [len(text) for text in completions]\n")
    (tmp_path / "data.jsonl").write_text('{"prompt": "3 + 4?", "answer": "seven"}\n')
    done = image.run("reward", "/models/my_reward.py", "--data", "/models/data.jsonl", "--json", mounts=[(tmp_path, "/models", "ro")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert [c["reward"] for c in json.loads(done.stdout)["rows"][0]["completions"]] == [5, 0]


def test_no_file_gives_anyone_more_rights(image):
    raised = [path for path in image.files() if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)
              and stat.S_ISREG(path.lstat().st_mode)]
    assert not raised, raised


def test_every_shared_library_is_found_and_libtorch_comes_from_the_image(image):
    for program in ("tandem", "rollout_server", "trainer", "libtandem_push_member.so"):
        done = image.run(f"/usr/local/bin/{program}", entrypoint=["ldd"])
        assert done.returncode == 0 and "not found" not in done.stdout, done.stdout
        for place in re.findall(r"=> (/\S+)", done.stdout):
            assert place.startswith(("/lib/", "/usr/lib/", "/usr/local/")), place
    assert "/usr/local/lib/tandem/torch/lib/libtorch_cpu.so" in image.run(
        "/usr/local/bin/trainer", entrypoint=["ldd"]).stdout.replace("/usr/local/bin/../", "/usr/local/")


def test_the_sbom_names_everything(image):
    sbom = json.loads((image.root / "usr/share/doc/tandem/sbom.spdx.json").read_text())
    assert sbom["spdxVersion"] == "SPDX-2.3"
    versions = {}
    for entry in sbom["packages"]:
        versions.setdefault(entry["name"], set()).add(entry["versionInfo"])
    assert versions["torch"] == {"2.11.0"}
    assert versions["libgrpc++1.51"] == {"1.51.1-3+b1"}
    assert "tokenizers" in versions and "cli11" in versions
    installed = image.run("-W", "-f", "${Package} ${Version}\n", entrypoint=["dpkg-query"]).stdout.splitlines()
    assert len(installed) > 80
    for line in installed:
        name, version = line.split()
        assert version in versions[name]
    ids = [entry["SPDXID"] for entry in sbom["packages"]]
    assert len(set(ids)) == len(ids)
    known = {"SPDXRef-DOCUMENT", *ids}
    assert {r[side] for r in sbom["relationships"] for side in ("spdxElementId", "relatedSpdxElement")} == known


def test_the_configuration_carries_labels_user_ports_and_stop_signal(image):
    config = image.config
    assert config["User"] == "65532:65532"
    assert config["StopSignal"] == "SIGTERM"
    assert set(config["ExposedPorts"]) == {"50051/tcp", "9400/tcp", "9401/tcp"}
    assert config["Entrypoint"] == ["/usr/local/bin/tandem"]
    label = "org.opencontainers.image."
    assert config["Labels"][label + "title"] == "tandem"
    assert config["Labels"][label + "licenses"] == "Apache-2.0"
    version = re.search(r"project\(tandem VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    assert config["Labels"][label + "version"] == version


def test_the_image_stays_within_its_size(image):
    size = image.size()
    print(f"image: {size / 1e6:.0f} MB unpacked")
    assert 300e6 < size < BUDGET_BYTES
