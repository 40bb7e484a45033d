"""Builds the image without a daemon or a registry, and runs programs inside it as a cluster does.

The base is made of Debian packages (mmdebstrap) and passed to deploy/container/build.sh as --base. buildah runs the steps of
the recipe with chroot. Base, layers and downloads of pip are kept in .deps/container, so that a second build compiles only
changes. The tree has the path of the checkout in the build stage, so that its ccache is used.
"""
import contextlib
import json
import os
import pathlib
import shlex
import subprocess

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
FOLDER = SOURCE / ".deps/container"
BASE_TAR = FOLDER / "debian-12.tar"
BASE = "localhost/tandem-test-base"
KEPT_BYTES = 12e9  # a build of the CPU image leaves 5 GB, and a later one with other sources 1 GB more
# What Debian's slim images leave out, also of packages that are installed later.
SLIM = [f"--dpkgopt=path-exclude={folder}/*" for folder in (
    "/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/groff",
    "/usr/share/lintian", "/usr/share/linda")] + ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
# /usr is merged from the start, as in those images, and not by the package usrmerge, which depends on Perl.
MERGED = ["--include=usr-is-merged", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"]

# Runs as root in a mount and process namespace. ROOT becomes read-only, and /tmp and /dev/shm are in memory. After
# MOUNTS (FROM TO ro|rw)... --, COMMAND... runs as user 65532 without a way to gain privileges, as process 1.
ENTER = r"""
set -euo pipefail
root=$1 directory=$2
shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [[ $1 != -- ]]; do
  mount --bind "$1" "$root$2"
  [[ $3 == rw ]] || mount -o remount,bind,ro "$root$2"
  shift 3
done
shift
exec setpriv --no-new-privs chroot --userspec=65532:65532 --groups=65532 "$root" /usr/bin/env -C "$directory" -i "$@"
"""


def checked(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout.strip()


class Store:
    """A buildah storage for these tests."""

    def __init__(self):
        assert os.geteuid() == 0, "mounting an image's root needs root"
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.command = ["buildah", "--root", str(FOLDER / "storage"), "--runroot", str(FOLDER / "run"),
                        "--storage-driver"]
        overlay = subprocess.run([*self.command, "overlay", "info"], capture_output=True, check=False)
        # In another container, overlay may not be allowed; vfs copies the whole root for every step.
        self.command.append("overlay" if overlay.returncode == 0 else "vfs")

    def buildah(self, *arguments, **options):
        return checked(*self.command, *arguments, **options)

    def make_base(self):
        """Makes the base from Debian's mirrors with updates and security updates."""
        if not BASE_TAR.exists():
            partial = BASE_TAR.with_suffix(".partial.tar")
            checked("mmdebstrap", "--variant=minbase", "--quiet", *SLIM, *MERGED, "bookworm", partial)
            partial.rename(BASE_TAR)
        if not self.buildah("images", "--quiet", "--filter", f"reference={BASE}"):
            container = self.buildah("from", "scratch")
            self.buildah("add", "--quiet", container, BASE_TAR, "/")
            self.buildah("commit", "--quiet", "--rm", container, BASE)

    def clear_up(self):
        """Removes the remains of interrupted builds, and all layers if they have more than KEPT_BYTES."""
        self.buildah("rm", "--all")
        used = int(checked("du", "--summarize", "--bytes", "--one-file-system", FOLDER / "storage").split()[0])
        if used > KEPT_BYTES:
            self.buildah("rmi", "--all", "--force")

    def build(self, variant, tag, log):
        """Runs build.sh with its output in the file `log`, and returns the output."""
        cache = checked("ccache", "--get-config", "cache_dir")
        pathlib.Path(cache).mkdir(parents=True, exist_ok=True)
        trust = os.environ.get("SSL_CERT_FILE")
        command = [SOURCE / "deploy/container/build.sh", variant, "--tag", tag, "--base", BASE,
                   *(["--ca", trust] if trust else []), "--",
                   "--build-arg", f"SOURCE_DIR={SOURCE}", "--build-arg", "CCACHE_DIR=/run/ccache",
                   "--volume", f"{cache}:/run/ccache"]
        with open(log, "w", encoding="utf-8") as out:
            done = subprocess.run([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, check=False,
                                  env=os.environ | {"BUILDER": " ".join(self.command)})
        said = pathlib.Path(log).read_text(encoding="utf-8")
        assert done.returncode == 0, said[-8000:]
        return said

    @contextlib.contextmanager
    def image(self, tag):
        container = self.buildah("from", "--pull-never", tag)
        try:
            config = json.loads(self.buildah("inspect", "--type", "image", tag))["OCIv1"]["config"]
            yield Image(pathlib.Path(self.buildah("mount", container)), config)
        finally:
            self.buildah("rm", container)


class Image:
    """The root of an image on disk, and its configuration in the terms of the OCI image specification."""

    def __init__(self, root, config):
        self.root = root
        self.config = config

    def command(self, *arguments, mounts=(), entrypoint=None):
        """A command line that runs the image's entry point, or `entrypoint`, with `arguments`.

        mounts: (folder here, folder in the image, "ro" or "rw").
        """
        start = self.config["Entrypoint"] if entrypoint is None else entrypoint
        inside = [str(word) for mount in mounts for word in mount]
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "bash", "-c", ENTER, "enter",
                str(self.root), self.config["WorkingDir"], *inside, "--", *self.config["Env"], *start,
                *map(str, arguments)]

    def run(self, *arguments, mounts=(), entrypoint=None, timeout=120):
        return subprocess.run(self.command(*arguments, mounts=mounts, entrypoint=entrypoint), capture_output=True,
                              text=True, timeout=timeout, check=False)

    def files(self):
        for folder, _, names in os.walk(self.root):
            for name in names:
                yield pathlib.Path(folder, name)

    def size(self):
        """The size of all files in bytes, where hard links count once."""
        seen = {(s.st_dev, s.st_ino): s.st_size for s in (path.lstat() for path in self.files())}
        return sum(seen.values())
