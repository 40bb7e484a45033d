"""Packs the programs with every library that they need, LibTorch's too, into one archive that runs where it is unpacked, without pip
(docs/installation.md). `make release` runs it on the wheel of build_wheel.py.

    .deps/wheel-venv/bin/python deploy/release/build_tarball.py --wheel build/wheel/tandem_rl-*.whl --out build/release-files

    tandem-VERSION-linux-x86_64/bin       links to the programs
    tandem-VERSION-linux-x86_64/python    the wheel, and beside it the libraries of LibTorch's wheels in their own folders

The C++ library of this system is added to those that auditwheel grafted, as a small system may lack it: auditwheel counts on it
being there. With it the archive needs the glibc of this system or a newer one."""
import argparse
import email
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

from build_wheel import DEFAULT_LEVEL, ROOT, copy_copyrights, prepare, run

PROGRAMS = ("tandem", "rollout_server", "trainer")
CPP_RUNTIME = ("libstdc++.so.6", "libgcc_s.so.1")
README = """Tandem {version}: rollout server, trainer and drift lab.

bin/tandem demo trains a small model on this machine; it makes the model with python3, pip and the packages numpy and gguf, or takes
one with --model. Rewards and environments in Python run in python3, or in $TANDEM_PYTHON. bin/tandem --help lists the commands.

The licence is LICENSE, those of the libraries are below python/tandem_rl/share/doc and python/licenses.
"""


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = pathlib.Path(archive.extract(member, folder))
            if not member.is_dir():
                path.chmod((member.external_attr >> 16) & 0o777 or 0o644)


def add_libtorch(binaries, python):
    """The libraries of LibTorch's wheels that the programs need, where the programs look for them, and the licences. Returns the
    wheels as NAME==VERSION."""
    with tempfile.TemporaryDirectory(dir=python.parent) as prefix:
        run(ROOT / "deploy/setup/copy_programs.sh", binaries, prefix)
        shutil.copytree(pathlib.Path(prefix, "lib/tandem"), python, copy_function=os.replace, dirs_exist_ok=True)
    site, = (ROOT / ".deps/venv/lib").glob("python3*/site-packages")
    copied = {str(path.relative_to(python)) for path in python.rglob("*.so*")}
    distributions = []
    for record in sorted(site.glob("*.dist-info/RECORD")):
        if copied.isdisjoint(line.split(",")[0] for line in record.read_text().splitlines()):
            continue
        metadata = email.message_from_bytes((record.parent / "METADATA").read_bytes())
        distributions.append(f"{metadata['Name']}=={metadata['Version']}")
        for path in record.parent.rglob("*"):
            if path.is_file() and "licen" in path.name.lower():
                target = python / "licenses" / record.parent.name / path.relative_to(record.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    return distributions


def add_cpp_runtime(binaries, python):
    """The C++ library of this system under its own name, where the run path of the programs finds it before the system's."""
    found = run("ldd", binaries / "tandem").split()
    libraries = [pathlib.Path(found[found.index(name) + 2]).resolve() for name in CPP_RUNTIME]
    for name, library in zip(CPP_RUNTIME, libraries, strict=True):
        shutil.copyfile(library, python / "tandem_rl.libs" / name)
    copy_copyrights(libraries, python / "tandem_rl/share/doc")


def pack(tree, archive, moment, level=DEFAULT_LEVEL):
    """A tar of one owner and one moment, in sorted order, so that the same files give the same archive."""
    def plain(member):
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = moment
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member
    # gzip alone: xz takes minutes for a tenth less. Without a name and a moment in its header.
    with open(archive, "wb") as out:
        with subprocess.Popen(["gzip", "--no-name", f"-{level}"], stdin=subprocess.PIPE, stdout=out) as gzip:
            with tarfile.open(fileobj=gzip.stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for path in sorted([tree, *tree.rglob("*")]):
                    tar.add(path, arcname=path.relative_to(tree.parent), recursive=False, filter=plain)
            gzip.stdin.close()
        if gzip.returncode != 0:
            raise SystemExit(f"gzip: exit code {gzip.returncode}")


def build(wheel, binaries, out, level=DEFAULT_LEVEL):
    """(path of the archive, the Debian packages whose libraries are in it, the wheels of LibTorch as NAME==VERSION)"""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        tree = pathlib.Path(temporary, f"tandem-{version}-linux-x86_64")
        unpack(wheel, tree / "python")
        wheels = add_libtorch(binaries, tree / "python")
        add_cpp_runtime(binaries, tree / "python")
        packages = sorted(path.parent.name for path in (tree / "python/tandem_rl/share/doc").glob("*/copyright"))
        (tree / "bin").mkdir()
        for program in PROGRAMS:
            (tree / "bin" / program).symlink_to(f"../python/tandem_rl/bin/{program}")
        shutil.copyfile(ROOT / "LICENSE", tree / "LICENSE")
        (tree / "README").write_text(README.format(version=version))
        archive = out / f"{tree.name}.tar.gz"
        pack(tree, archive, int(os.environ["SOURCE_DATE_EPOCH"]), level)
    return archive, packages, wheels


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--wheel", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="directory of the programs")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory for the archive")
    args = parser.parse_args()
    prepare(parser, args)
    archive, _, _ = build(args.wheel, args.bin, args.out)
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
