"""Makes what a release consists of, in one directory: what `make release` runs.

    .deps/wheel-venv/bin/python deploy/release/release.py [--out build/release-files] [--without-image] [-- OPTIONS OF build.sh]

    tandem_rl-VERSION-py3-none-manylinux_*.whl   the Python package with the programs in it (build_wheel.py)
    tandem_rl-VERSION.tar.gz                     the Python package alone, as source
    tandem-VERSION-linux-x86_64.tar.gz           the programs with their libraries (build_tarball.py)
    tandem-VERSION-linux-x86_64.spdx.json        SBOM of the programs in the wheel and in that archive
    tandem-VERSION-source.tar.gz                 the repository at this commit
    tandem-VERSION-cpu-image.tar                 the container image, for podman or docker load (deploy/container/build.sh)
    tandem-VERSION-cpu-image.spdx.json           its SBOM, which is also inside it
    SHA256SUMS, RELEASE.md                       digests, and the page: what each file is, how to check and install it, the changes"""
import argparse
import datetime
import email
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import build_tarball
import build_wheel
from build_wheel import DEFAULT_LEVEL, ROOT, run

sys.path.insert(0, str(ROOT / "deploy/container"))
import sbom  # noqa: E402

BUILDERS = ("buildah", "podman", "docker")  # as deploy/container/build.sh looks for them
IMAGE_SBOM = "usr/share/doc/tandem/sbom.spdx.json"
MADE = ("tandem-*", "tandem_rl-*", "SHA256SUMS", "RELEASE.md")
BUILD_SDIST = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"


def say(text):
    print(f"release: {text}", file=sys.stderr, flush=True)


def version_and_commit():
    version = re.search(r"^project\(tandem VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
    return version, run("git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*", cwd=ROOT).strip()


def build_sdist(out):
    """Packed again, because setuptools puts the moment of the build into it."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = pathlib.Path(temporary, "tree")
        build_wheel.copy_sources(tree)
        run(sys.executable, "-c", BUILD_SDIST, temporary, cwd=tree / "python")
        made, = pathlib.Path(temporary).glob("tandem_rl-*.tar.gz")
        with tarfile.open(made) as archive:
            archive.extractall(temporary)
        build_tarball.pack(pathlib.Path(temporary, made.name.removesuffix(".tar.gz")), out / made.name,
                           int(os.environ["SOURCE_DATE_EPOCH"]))
    return out / made.name


def build_source_archive(version, out):
    archive = out / f"tandem-{version}-source.tar.gz"
    run("git", "archive", "--format=tar.gz", f"--prefix=tandem-{version}/", "-o", archive, "HEAD", cwd=ROOT)
    return archive


def write_sbom(version, commit, packages, libtorch_wheels, out):
    """SPDX of the programs in the wheel and in the archive: Debian packages whose libraries are in it (auditwheel's own list lacks
    those that know their files by /lib where /usr is merged), LibTorch's wheels, and what is compiled in."""
    os_release = pathlib.Path("/usr/lib/os-release").read_text()
    site, = (ROOT / ".deps/venv/lib").glob("python3*/site-packages")
    with tempfile.TemporaryDirectory() as folder:
        run(ROOT / "deploy/container/linked_parts.sh", folder)
        linked = [*sbom.crates(json.loads(pathlib.Path(folder, "crates.json").read_text())),
                  *sbom.compiled_in(pathlib.Path(folder, "built-in.txt").read_text().split(), os_release)]
    status = run("dpkg-query", "-s", *packages)
    shared = [*sbom.debian_packages(status, os_release), *sbom.wheels(libtorch_wheels, site)]
    moment = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    document = sbom.document(version, commit, moment.strftime("%Y-%m-%dT%H:%M:%SZ"), shared, linked)
    path = out / f"tandem-{version}-linux-x86_64.spdx.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def build_image(version, options, out):
    archive = out / f"tandem-{version}-cpu-image.tar"
    done = subprocess.run([ROOT / "deploy/container/build.sh", "cpu", "--archive", archive, *options], check=False, stdout=sys.stderr)
    if done.returncode != 0:
        raise SystemExit("the image was not built; the lines above say why. --without-image makes a release without it")
    return archive


def file_of_image(archive, wanted):
    """The text of a file in an image in the layout of OCI: of its last layer that has it."""
    with tarfile.open(archive) as image:
        def blob(digest):
            return image.extractfile("blobs/" + digest.replace(":", "/"))
        index = json.load(image.extractfile("index.json"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in reversed(manifest["layers"]):
            with tarfile.open(fileobj=blob(layer["digest"]), mode="r|*") as files:
                for member in files:
                    if member.name.removeprefix("./") == wanted:
                        return files.extractfile(member).read().decode()
    raise SystemExit(f"{archive} has no {wanted}")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changes(version):
    """The section of CHANGELOG.md about this version, whose links lead into the repository and are left out here."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)}[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found:
        raise SystemExit(f"CHANGELOG.md: want a section `## {version}`")
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", found[1]).strip()


def needs_of(wheel):
    """(lowest Python, platform tag)"""
    with zipfile.ZipFile(wheel) as archive:
        name, = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    return metadata["Requires-Python"], wheel.stem.split("-")[-1]


def tarball_glibc():
    """That of this system, whose C++ library is in the archive."""
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1]


def page(version, commit, files, digests):
    """RELEASE.md. files: name by kind; a kind that was not made is absent."""
    python, tag = needs_of(files["wheel"])
    glibc = ".".join(re.match(r"manylinux_(\d+)_(\d+)_", tag).groups())
    what = {"wheel": f"programs and Python package: `pip install {files['wheel'].name}` (Python {python}, x86-64, glibc {glibc} or newer; "
                     "brings LibTorch)",
            "tarball": f"programs with all libraries (glibc {tarball_glibc()} or newer): `tar -xf {files['tarball'].name}`, then `bin/tandem`",
            "sbom": "SBOM of the programs in the two above, SPDX 2.3",
            "sdist": "Python package alone: client, captures, rewards, environments",
            "source": "the repository"}
    if "image" in files:
        what["image"] = f"container image: `podman load -i {files['image'].name}` or `docker load -i {files['image'].name}`"
        what["image_sbom"] = "SBOM of the image, SPDX 2.3"
    rows = "\n".join(f"| `{files[kind].name}` | {files[kind].stat().st_size / 1e6:.1f} MB | {text} |" for kind, text in what.items())
    sums = "\n".join(f"{digests[kind]}  {files[kind].name}" for kind in what)
    day = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc).date()
    return f"""# Tandem {version}

Commit {commit}, {day}. After an installation, `tandem demo` trains a small model on this machine and writes a report.

| file | size | what |
|---|---|---|
{rows}

Download what you want and `SHA256SUMS` into one folder, and check it: `sha256sum --check --ignore-missing SHA256SUMS`.

```text
{sums}
```

## Changes

{changes(version)}
"""


def make(binaries, out, image_options, level):
    """Everything into `out`; image_options is None for a release without the image. Returns the path of the page."""
    version, commit = version_and_commit()
    if commit.endswith("+"):
        say(f"the tree differs from its commit {commit[:-1]}: the programs are of the tree, the source archive is of the commit")
    say("the wheel")
    files = {"wheel": build_wheel.build(binaries, out, level)}
    files["sdist"] = build_sdist(out)
    say("the archive of the programs")
    files["tarball"], packages, libtorch_wheels = build_tarball.build(files["wheel"], binaries, out, level)
    files["sbom"] = write_sbom(version, commit, packages, libtorch_wheels, out)
    files["source"] = build_source_archive(version, out)
    if image_options is not None:
        say("the image, which compiles the programs in a container")
        files["image"] = build_image(version, image_options, out)
        files["image_sbom"] = out / f"tandem-{version}-cpu-image.spdx.json"
        files["image_sbom"].write_text(file_of_image(files["image"], IMAGE_SBOM))
    digests = {kind: digest(path) for kind, path in files.items()}
    (out / "SHA256SUMS").write_text("".join(f"{digests[kind]}  {path.name}\n" for kind, path in files.items()))
    path = out / "RELEASE.md"
    path.write_text(page(version, commit, files, digests))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="directory of the programs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/release-files", help="directory for the files, those of an earlier release removed")
    parser.add_argument("--without-image", action="store_true", help="all but the container image")
    parser.add_argument("--compression-level", type=int, choices=range(1, 10), default=DEFAULT_LEVEL, metavar="1-9",
                        help="of the wheel and of the archive of the programs (default: %(default)s)")
    parser.add_argument("image_options", nargs="*", metavar="OPTION", help="after --: options of deploy/container/build.sh")
    args = parser.parse_args()
    if not args.without_image and not os.environ.get("BUILDER") and not any(map(shutil.which, BUILDERS)):
        parser.error(f"the image needs {', '.join(BUILDERS[:-1])} or {BUILDERS[-1]}: deploy/setup/install.sh --container installs the "
                     "first, and --without-image makes a release without it")
    build_wheel.prepare(parser, args)
    for pattern in MADE:
        for earlier in args.out.glob(pattern):
            earlier.unlink()
    path = make(args.bin, args.out, None if args.without_image else args.image_options, args.compression_level)
    for file in sorted(args.out.iterdir()):
        print(f"{file.stat().st_size / 1e6:9.1f} MB  {file}")
    say(f"the page is {path}")


if __name__ == "__main__":
    main()
