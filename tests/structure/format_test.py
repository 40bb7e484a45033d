"""Every C++ file is formatted as `make format` does it. Only for the clang-format of Debian 12, because versions differ."""
import concurrent.futures
import subprocess

from source_tree import SOURCE_FOLDERS, ROOT, files, name


def differs(path):
    done = subprocess.run(["clang-format", "--style=file", str(path)], cwd=ROOT, capture_output=True, check=True)
    return done.stdout != path.read_bytes()


def test_make_format_changes_nothing():
    sources = list(files([*SOURCE_FOLDERS, "tests"], {".h", ".cc", ".cu", ".cuh"}))
    assert len(sources) > 900
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = [name(path) for path, other in zip(sources, pool.map(differs, sources)) if other]
    assert not found, f"run `make format`: {found}"
