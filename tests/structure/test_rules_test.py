"""Every test file is run, asserts something and does not sleep."""
import re

from source_tree import ROOT, files, name

# Folders in which a wait for another process may poll.
POLLING = {"tests/support", "tests/bench", "tests/mutants"}


def cc_tests():
    return [path for path in files(["tests"], {".cc"}) if path.name.endswith("_test.cc")]


def python_tests():
    return [path for path in files(["tests", "python/tests"], {".py"}) if path.name.endswith("_test.py")]


def test_every_test_file_is_named_in_cmake_or_lies_in_a_folder_that_is():
    missing = []
    for path in cc_tests() + python_tests():
        lists = [folder / "CMakeLists.txt" for folder in path.parents if ROOT in folder.parents]
        named = any(re.search(rf"(?<![\w]){re.escape(path.name)}(?!\w)", p.read_text())
                    or (path.suffix == ".cc" and in_a_folder_of(p, path))
                    for p in lists if p.is_file())
        if not named:
            missing.append(name(path))
    assert not missing, missing


def in_a_folder_of(cmake_list, test):
    folder = test.parent.relative_to(cmake_list.parent).as_posix()
    named = " ".join(re.findall(r"FOLDERS ([^()]*?)(?=\b[A-Z]{4,}\b|\))", cmake_list.read_text()))
    return folder in named.split() or ("${folders}" in named and "file(GLOB folders" in cmake_list.read_text())


def test_every_test_file_asserts():
    silent = [name(path) for path in cc_tests()
              if not re.search(r"\b(EXPECT|ASSERT)_\w+\(|\bFAIL\(", path.read_text())]
    silent += [name(path) for path in python_tests()
               if not re.search(r"\bassert\b|raises\(|assert_", path.read_text())]
    assert not silent, silent


def test_no_test_sleeps():
    pattern = re.compile(r"sleep_for|sleep_until|\busleep\(|\bnanosleep\(|\btime\.sleep\(|SleepFor\(")
    sleepy = []
    for path in files(["tests", "python/tests"], {".cc", ".h", ".py"}):
        if name(path).startswith("tests/structure/") or any(name(path).startswith(p) for p in POLLING):
            continue
        sleepy += [f"{name(path)}:{n}: {line.strip()}"
                   for n, line in enumerate(path.read_text().splitlines(), 1) if pattern.search(line)]
    assert not sleepy, "\n".join(sleepy)


def test_no_test_is_disabled():
    pattern = re.compile(r"\bDISABLED_|GTEST_SKIP\(|pytest\.mark\.skip|pytest\.skip\(")
    disabled = [name(path) for path in cc_tests() + python_tests()
                if path.name != "test_rules_test.py" and pattern.search(path.read_text())]
    assert not disabled, disabled
