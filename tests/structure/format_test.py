"""Every C++ file is formatted as `make format` does it. Only for the clang-format of Debian 12, because versions differ."""
import concurrent.futures
import itertools
import re
import subprocess

from source_tree import SOURCE_FOLDERS, ROOT, files


def unformatted(paths):
    """Those of the paths that `make format` would change. One process looks at many files, since most of its time is its start."""
    done = subprocess.run(["clang-format", "--style=file", "--dry-run", *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"^(\S+?):\d+:\d+: warning: code should be clang-formatted", done.stderr, flags=re.MULTILINE))


def test_make_format_changes_nothing():
    sources = list(files([*SOURCE_FOLDERS, "tests"], {".h", ".cc", ".cu", ".cuh"}))
    assert len(sources) > 900
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = sorted(set(itertools.chain(*pool.map(unformatted, [sources[i:i + 100] for i in range(0, len(sources), 100)]))))
    assert not found, f"run `make format`: {found}"
