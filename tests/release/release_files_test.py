"""What `make release` makes, but for the image: contents, digests, page; and the programs of the wheel and of the archive run without
the checkout. tests/container/image_test.py is about the image, bare_roots_test.py installs the wheel where nothing else is."""
import email
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
SITE = pathlib.Path(sysconfig.get_paths()["purelib"])
INIT = ["init", "--out", "model", "--text", "text.txt", "--hidden", 32, "--layers", 1, "--heads", 2, "--kv-heads", 1,
        "--intermediate", 48, "--vocab", 280, "--context", 128]
PROMISED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libresolv.so.2", "libstdc++.so.6",
            "libgcc_s.so.1", "libz.so.1"}  # of every manylinux tag


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder that make release fills, packed quickly."""
    out = tmp_path_factory.mktemp("release")
    run(sys.executable, SOURCE / "deploy/release/release.py", "--bin", BIN, "--out", out, "--without-image",
        "--compression-level", 1)
    return out


@pytest.fixture(scope="module")
def wheel(files):
    path, = files.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """The site-packages of a venv with the wheel, and LibTorch beside it as pip would put it."""
    folder = tmp_path_factory.mktemp("venv") / "v"
    venv.create(folder, with_pip=False)
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "-q", "--no-deps", "--no-index", wheel)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in ("torch", "nvidia"):
        (packages / name).symlink_to(SITE / name)
    (packages / "packages_of_the_tests.pth").write_text(str(SITE) + "\n")
    return packages


@pytest.fixture(scope="module")
def archive(files, tmp_path_factory):
    """The folder that the archive of the programs unpacks to."""
    folder = tmp_path_factory.mktemp("unpacked")
    run("tar", "-C", folder, "-xf", next(files.glob("tandem-*-linux-x86_64.tar.gz")))
    return next(folder.iterdir())


def libraries(program):
    """name -> path of each shared library that the loader finds for a program"""
    return dict(re.findall(r"^\t(\S+) => (\S+)", run("ldd", program.resolve()), re.M))


def test_the_wheel_is_for_every_python_on_a_manylinux_and_names_libtorchs_wheel(wheel):
    assert re.fullmatch(r"tandem_rl-[\d.]+-py3-none-manylinux_2_\d\d_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        metadata = email.message_from_bytes(packed.read(next(name for name in names if name.endswith("/METADATA"))))
        needs = metadata.get_all("Requires-Dist")
        tag = packed.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
    assert f"torch=={run(sys.executable, '-c', 'import torch; print(torch.__version__)').split('+')[0]}" in needs
    assert any(need.startswith("gguf>=") for need in needs)
    assert "Root-Is-Purelib: false" in tag
    assert {f"tandem_rl/bin/{name}" for name in ("tandem", "rollout_server", "trainer", "libtandem_push_member.so")} <= set(names)
    assert "tandem_rl/share/tandem/examples/demo.yaml" in names and "tandem_rl/share/doc/libgrpc29/copyright" in names
    assert not any("libtorch" in name or "libc10" in name or "libcud" in name for name in names)


def test_auditwheel_agrees_with_the_tag(wheel):
    said = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    assert f'This constrains the platform tag to "{wheel.stem.split("-")[-1]}"' in said


@pytest.mark.parametrize("name", ["tandem", "rollout_server", "trainer", "libtandem_push_member.so"])
def test_every_library_is_of_the_wheel_of_libtorchs_or_promised(site, name):
    found = libraries(site / "tandem_rl/bin" / name)
    assert all(path.startswith("/") for path in found.values()), found
    beside = {soname for soname, path in found.items() if pathlib.Path(os.path.normpath(path)).is_relative_to(site)}
    assert set(found) - beside - PROMISED <= {"ld-linux-x86-64.so.2", "libcudart.so.13", "libcupti.so.13"}, found
    machine = run("readelf", "-d", site / "tandem_rl/bin" / name)
    assert str(SOURCE) not in machine


def test_the_programs_of_the_wheel_run_and_start_python_in_its_interpreter(site, tmp_path):
    (tmp_path / "text.txt").write_text("one and one is two.\n" * 40)
    (tmp_path / "reward.py").write_text("import sys\n\ndef score(completions, **_):\n    print(sys.executable, file=sys.stderr)\n"
                                        "    return [1.0 for _ in completions]\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one and", "completion": " one"}\n')
    bin_folder = site.parents[2] / "bin"
    environment = {"PATH": "/usr/bin:/bin"}

    def tandem(*arguments, **options):
        return subprocess.run([str(word) for word in (bin_folder / "tandem", *arguments)], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, check=False, timeout=200, **options)
    assert tandem("version").stdout.startswith("tandem ")
    made = tandem(*INIT)
    assert made.returncode == 0, made.stderr
    scored = tandem("score", "--model", "model", "--engine", "trainer", input='{"ids":[5,6,7]}\n')
    assert len(json.loads(scored.stdout)["logprobs"]) == 3, scored.stderr
    rewarded = tandem("reward", "reward.py:score", "--data", "rows.jsonl")
    assert rewarded.returncode == 0 and f"{bin_folder}/python" in rewarded.stdout + rewarded.stderr, rewarded.stdout + rewarded.stderr
    ran = tandem("demo", "--steps", 1, "--model", "model", "--out", "runs", "--name", "one", "--set", "trainer.eval.at_start=false",
                 "--set", "trainer.eval.at_end=false")
    assert ran.returncode == 0 and (tmp_path / "runs/one/report.html").exists(), ran.stderr


def test_the_archive_runs_where_it_is_unpacked_with_its_own_libraries(archive, tmp_path):
    assert sorted(path.name for path in archive.iterdir()) == ["LICENSE", "README", "bin", "python"]
    found = libraries(archive / "bin/trainer")
    own = {name for name, path in found.items() if pathlib.Path(os.path.normpath(path)).is_relative_to(archive)}
    assert {"libtorch_cpu.so", "libcupti.so.13", "libgomp.so.1", "libstdc++.so.6", "libgcc_s.so.1"} <= own, found
    assert set(found) - own <= PROMISED, found
    assert list((archive / "python/licenses").glob("torch-*/**/LICENSE"))
    (tmp_path / "text.txt").write_text("one and one is two.\n" * 40)
    run(archive / "bin/tandem", *INIT, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    run(archive / "bin/tandem", "demo", "--steps", 1, "--model", "model", "--out", "runs", "--name", "one", cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"})
    assert (tmp_path / "runs/one/report.html").exists()


def test_the_digests_are_those_of_the_files_and_the_page_has_them(files):
    page = (files / "RELEASE.md").read_text()
    lines = (files / "SHA256SUMS").read_text().splitlines()
    named = {line.split("  ")[1] for line in lines}
    assert named == {path.name for path in files.iterdir()} - {"SHA256SUMS", "RELEASE.md"} and len(named) == 5
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((files / name).read_bytes()).hexdigest() == digest
        assert line in page and f"| `{name}` | " in page
    assert "sha256sum --check --ignore-missing SHA256SUMS" in page
    run("sha256sum", "--check", "SHA256SUMS", cwd=files)
    assert "## Changes" in page and "](docs/" not in page


def test_the_sbom_names_what_was_grafted_what_libtorch_brings_and_what_is_compiled_in(files, wheel):
    sbom = json.loads(next(files.glob("*.spdx.json")).read_text())
    names = {package["name"] for package in sbom["packages"]}
    assert sbom["spdxVersion"] == "SPDX-2.3"
    assert {"libgrpc29", "libcurl4", "torch", "nvidia-cuda-runtime", "tokenizers", "nlohmann-json3"} <= names, names
    assert "libc6" not in names and {"libstdc++6", "libgcc-s1"} <= names  # the system's; those that the archive has besides
    with zipfile.ZipFile(wheel) as packed:
        grafted = [name.removeprefix("tandem_rl.libs/") for name in packed.namelist() if name.startswith("tandem_rl.libs/lib")]
        has_copyright = {name.split("/")[3] for name in packed.namelist() if name.startswith("tandem_rl/share/doc/lib")}
    owner_of = {}
    for line in run("dpkg-query", "-S", "*.so*").splitlines():
        package, _, path = line.rpartition(": ")
        owner_of.setdefault(pathlib.Path(path).name, package.split(":")[0])
    owners = {owner_of[re.sub(r"-[0-9a-f]{8}(?=[.\d]*\.so)", "", name)] for name in grafted}
    assert len(grafted) > 60 and owners <= names and owners == has_copyright


def test_the_source_archive_is_the_commit(files):
    with tarfile.open(next(files.glob("*-source.tar.gz"))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tracked = set(run("git", "ls-tree", "-r", "--name-only", "HEAD", cwd=SOURCE).splitlines())
    assert tracked <= names


def test_a_release_without_what_builds_images_is_refused_before_any_work(tmp_path):
    done = subprocess.run([sys.executable, SOURCE / "deploy/release/release.py", "--out", tmp_path / "out"], capture_output=True, text=True,
                          check=False, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "the image needs buildah, podman or docker" in done.stderr
    assert "--without-image" in done.stderr and not list(tmp_path.iterdir())


def test_programs_that_were_not_built_are_said(tmp_path):
    done = subprocess.run([sys.executable, SOURCE / "deploy/release/build_wheel.py", "--bin", tmp_path], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and f"there is no tandem in {tmp_path}: make build" in done.stderr
