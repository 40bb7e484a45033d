"""The programs are built so that memory errors are hard to exploit. readelf shows the properties of each."""
import os
import pathlib
import re
import subprocess

import pytest

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
PROGRAMS = ["rollout_server", "trainer", "tandem"]


def readelf(option, program):
    return subprocess.run(["readelf", "--wide", option, str(BIN / program)], capture_output=True, text=True,
                          check=True).stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_loaded_at_a_random_address(program):
    assert re.search(r"Type:\s+DYN \(Position-Independent Executable file\)", readelf("--file-header", program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_its_table_of_functions_is_bound_at_the_start_and_then_read_only(program):
    assert "GNU_RELRO" in readelf("--program-headers", program)
    assert re.search(r"\(FLAGS_1\)\s+Flags:.*\bNOW\b", readelf("--dynamic", program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_memory_is_writable_and_executable(program):
    headers = readelf("--program-headers", program)
    stack = re.search(r"GNU_STACK\s+(?:0x\w+\s+){5}(\S+)", headers)
    assert stack and stack.group(1) == "RW", headers
    segments = re.findall(r"LOAD\s+(?:0x\w+\s+){5}((?:[RWE] ?)+)", headers)
    assert segments and not [flags for flags in segments if "W" in flags and "E" in flags]


@pytest.mark.parametrize("program", PROGRAMS)
def test_stacks_and_copies_of_known_size_are_checked(program):
    symbols = readelf("--dyn-syms", program)
    assert "__stack_chk_fail@" in symbols
    assert re.search(r"__(memcpy|memmove|memset|read|snprintf|fprintf|printf|vsnprintf|fread|realpath)_chk@", symbols), (
        "built without _FORTIFY_SOURCE")


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_library_is_looked_for_in_the_working_directory(program):
    for path in re.findall(r"\((?:RPATH|RUNPATH)\)\s+Library (?:rpath|runpath): \[(.*)\]", readelf("--dynamic", program)):
        for folder in path.split(":"):
            assert folder.startswith(("/", "$ORIGIN")), path
