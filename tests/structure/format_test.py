"""Every C++ file is as `make format` leaves it. Run where clang-format is that of Debian 12: others break lines elsewhere."""
import concurrent.futures
import subprocess

from source_tree import ROOMS, ROOT, files, name


def differs(path):
    done = subprocess.run(["clang-format", "--style=file", str(path)], cwd=ROOT, capture_output=True, check=True)
    return done.stdout != path.read_bytes()


def test_make_format_changes_nothing():
    sources = list(files([*ROOMS, "tests"], {".h", ".cc", ".cu", ".cuh"}))
    assert len(sources) > 900
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = [name(path) for path, other in zip(sources, pool.map(differs, sources)) if other]
    assert not found, f"run `make format`: {found}"
