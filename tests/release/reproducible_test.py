"""The same tree gives the same files, byte for byte."""
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])


def test_two_builds_of_a_release_have_the_same_digests(tmp_path):
    for name in ("one", "two"):
        subprocess.run([sys.executable, SOURCE / "deploy/release/release.py", "--bin", os.environ["TANDEM_BIN"], "--out",
                        tmp_path / name, "--without-image"], check=True)
    assert (tmp_path / "one/SHA256SUMS").read_text() == (tmp_path / "two/SHA256SUMS").read_text()
