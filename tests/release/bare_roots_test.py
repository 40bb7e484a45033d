"""Installs the wheel with pip in a bare Debian 12 and a bare Ubuntu 24.04, without a compiler, and runs the demo there; and the
archive of the programs where there is neither pip nor Python.

The roots are made of the distributions' packages (mmdebstrap) and kept in .deps/bare-roots, with pip's downloads (LibTorch's wheels,
3 GB). Needs root."""
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.request
import zipfile

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
FOLDER = SOURCE / ".deps/bare-roots"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PYTHON = ["python3", "python3-venv", "ca-certificates"]
# Debian has no package with the keys of Ubuntu's archive.
UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_KEYS = f"{UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEYS_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"

# Runs a script in ROOT in a mount and process namespace, with the folder RELEASE at /release and the cache of pip.
ENTER = r"""
set -euo pipefail
root=$1 release=$2 cache=$3 script=$4
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir -p "$root/release" "$root/pip-cache"
mount --bind "$release" "$root/release"
mount -o remount,bind,ro "$root/release"
mount --bind "$cache" "$root/pip-cache"
exec chroot "$root" /usr/bin/env -C /root -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PIP_CACHE_DIR=/pip-cache \
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_DEFAULT_TIMEOUT=180 /bin/sh -euc "$script"
"""
INSTALL = """
for compiler in cc gcc g++ clang make; do ! command -v $compiler || { echo "$compiler is there"; exit 1; }; done
python3 -m venv v
. v/bin/activate
pip install --quiet /release/tandem_rl-*.whl
"""
DEMO = """
. v/bin/activate
tandem version
tandem demo --steps 2 --out runs --name bare
test -s runs/bare/report.html
tandem demo --steps 1 --out runs --name again 2>&1 | tee again.txt
! grep -q 'fetched once' again.txt
"""
CLIENT = """
import json, sys
from tandem_rl.launch import RolloutServer
with RolloutServer(sys.argv[1], numerics="exact") as server, server.client() as client:
    group = client.generate_group([5, 6, 7], 2, max_new_tokens=8, temperature=0.7, seed=1)
print(json.dumps([[completion.token_ids.tolist(), completion.behaviour_logprobs.tolist()] for completion in group.completions]))
"""
REWARD = r"""
. v/bin/activate
printf 'import sys\n\ndef score(completions, **_):\n    return [float(sys.prefix != sys.base_prefix)] * len(completions)\n' >reward.py
printf '{"prompt": "one", "completion": " two"}\n' >rows.jsonl
deactivate
PATH=/usr/bin:/bin v/bin/tandem reward reward.py:score --data rows.jsonl
"""
ARCHIVE = """
! command -v python3
tar -xf /release/tandem-*-linux-x86_64.tar.gz
tandem-*/bin/tandem version
i=0; while [ $i -lt 40 ]; do echo 'one and one is two.'; i=$((i + 1)); done >text.txt
tandem-*/bin/tandem init --out model --text text.txt --hidden 32 --layers 1 --heads 2 --kv-heads 1 --intermediate 48 --vocab 280 --context 128
tandem-*/bin/tandem demo --steps 1 --model model --out runs --name bare
test -s runs/bare/report.html
"""


@dataclasses.dataclass(frozen=True)
class Distribution:
    name: str
    suite: str
    mirror: tuple = ()
    options: tuple = ()


def checked(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def ubuntu():
    package = FOLDER / "ubuntu-keyring.deb"
    if not package.exists():
        data = urllib.request.urlopen(UBUNTU_KEYS, timeout=60).read()
        assert hashlib.sha256(data).hexdigest() == UBUNTU_KEYS_SHA256
        package.write_bytes(data)
    checked("dpkg-deb", "-x", package, FOLDER / "keys")
    keys = FOLDER / "keys/usr/share/keyrings/ubuntu-archive-keyring.gpg"
    return Distribution("ubuntu-24.04", "noble", (UBUNTU,), (f"--keyring={keys}", "--components=main,universe"))


def make_root(distribution, packages, folder):
    """A root with `packages` and apt, or without packages one that has neither apt nor the C++ library in Ubuntu's case. Unpacked
    into `folder` out of a tar that is kept."""
    kept = FOLDER / f"{distribution.name}-{'python' if packages else 'bare'}.tar"
    if not kept.exists():
        partial = kept.with_suffix(".partial.tar")
        kind = ["--variant=apt", f"--include={','.join(packages)}"] if packages else ["--variant=minbase"]
        checked("mmdebstrap", "--quiet", *kind, *distribution.options, distribution.suite, partial,
                *distribution.mirror)
        partial.rename(kept)
    folder.mkdir(parents=True)
    checked("tar", "-C", folder, "-xf", kept)
    trusted = os.environ.get("SSL_CERT_FILE")
    if packages and trusted:
        shutil.copyfile(trusted, folder / CERTIFICATES.removeprefix("/"))
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "pip-cache").mkdir(exist_ok=True)
    out = tmp_path_factory.mktemp("release")
    subprocess.run([sys.executable, SOURCE / "deploy/release/release.py", "--bin", os.environ["TANDEM_BIN"], "--out", out,
                    "--without-image"], check=True)
    return out


@pytest.fixture(scope="module", params=["debian-12", "ubuntu-24.04"])
def installed(request, release):
    """Runs a script in a root in which the wheel is installed. The root is of this fixture alone: LibTorch makes it 5 GB."""
    distribution = Distribution("debian-12", "bookworm") if request.param == "debian-12" else ubuntu()
    root = FOLDER / f"root-{distribution.name}"
    shutil.rmtree(root, ignore_errors=True)
    make_root(distribution, PYTHON, root)

    def inside(script):
        return checked("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter", root, release,
                       FOLDER / "pip-cache", script)
    inside(INSTALL)
    yield inside
    shutil.rmtree(root)


def test_the_demo_runs_after_pip_install_and_fetches_its_model_once(installed):
    installed(DEMO)


def test_the_client_starts_the_server_and_gets_the_bits_of_this_build(installed, release, tmp_path):
    there = installed(f"v/bin/python -c '{CLIENT}' /root/.cache/tandem/smollm2-135m-instruct")
    with zipfile.ZipFile(next(release.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)  # the generated modules; the programs are those of TANDEM_BIN
    here = checked("env", f"PYTHONPATH={tmp_path}", sys.executable, "-c", CLIENT, SOURCE / "models/smollm2-135m-instruct")
    assert json.loads(there) == json.loads(here)


def test_rewards_run_in_the_interpreter_of_the_wheel_without_its_environment_being_active(installed):
    assert "1" in installed(REWARD)


@pytest.mark.parametrize("name", ["debian-12", "ubuntu-24.04"])
def test_the_archive_runs_where_there_is_no_python(name, release):
    distribution = Distribution(name, "bookworm") if name == "debian-12" else ubuntu()
    root = FOLDER / f"bare-{name}"
    shutil.rmtree(root, ignore_errors=True)
    make_root(distribution, [], root)
    checked("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter", root, release, FOLDER / "pip-cache",
            ARCHIVE)
    shutil.rmtree(root)
