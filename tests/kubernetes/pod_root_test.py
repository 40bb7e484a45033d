"""The root of a container (pod_sandbox.py), for several places of the checkout with its programs. Needs root."""
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
MAKE = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import pod_sandbox as pod
tree, folder = sys.argv[2], pathlib.Path(sys.argv[3])
pod.unshare(pod.CLONE_NEWNS)
pod.mount("none", "/", None, pod.MS_REC | pod.MS_PRIVATE)
pod.make_root(folder / "root", {"read_only_trees": [tree], "programs": {"marked": tree + "/mark"}, "cwd": "/",
                                "mounts": [], "read_only_root": True}, folder, "pod")
pod.enter(folder / "root")
mark = pathlib.Path("/usr/local/bin/marked")
try:
    pathlib.Path(tree, "new").touch()
    writable = True
except OSError:
    writable = False
print(json.dumps([mark.read_text(), writable, oct(pathlib.Path("/tmp").stat().st_mode & 0o7777)]))
"""


@pytest.mark.parametrize("place", ["tmp", "var/tmp", "root", "run", "srv", "tmp/a folder with spaces"])
def test_a_checkout_anywhere_is_there_read_only(tmp_path, place):
    """Runs in a mount namespace in which /PLACE has a checkout."""
    folder = tmp_path / "pod"
    for name in ("shm", "names"):
        (folder / name).mkdir(parents=True)
    source = tmp_path / "source"
    source.mkdir()
    (source / "mark").write_text("here")
    tree = f"/{place}/tandem-checkout-of-a-test"
    own = 'mkdir -p "$1" && mount --bind "$2" "$1" && shift 2 && exec "$@"'
    try:
        done = subprocess.run(["unshare", "-m", "sh", "-c", own, "sh", tree, str(source), sys.executable, "-c", MAKE,
                               str(HERE), tree, str(folder)], capture_output=True, text=True, timeout=240, check=False)
    finally:
        for made in (pathlib.Path(tree), pathlib.Path(tree).parent):
            if made.name.startswith(("tandem-checkout", "a folder")):
                made.rmdir()
    assert done.returncode == 0, done.stderr
    assert done.stdout == '["here", false, "0o1777"]\n'
