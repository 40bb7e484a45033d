"""Options that pages show with a program are options of it: held to the program's own help, in blocks and in running text."""
import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
BIN = pathlib.Path(os.environ["TANDEM_BIN"])
sys.path.insert(0, str(SOURCE / "tests" / "support"))

import page_blocks  # noqa: E402

PROGRAM = re.compile(r"(?:^|[\s`(])(?:build/release/bin/)?(tandem|rollout_server|trainer) ")
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)")
CODE = re.compile(r"`([^`\n]+)`")
# Shown as mistakes, with what is said to them.
MISTAKES = {"--temprature", "--resum"}


@functools.cache
def help_of(words):
    done = subprocess.run([str(BIN / words[0]), *words[1:], "--help"], capture_output=True, text=True, timeout=60)
    return (done.stdout + done.stderr) if done.returncode == 0 else None


@functools.cache
def options_of(words):
    return set(re.findall(r"(?<![\w-])(--?[a-z][a-z0-9-]*)", help_of(words) or ""))


def command_of(words):
    """The longest beginning that is a (sub)command: ("tandem", "drift", "why")."""
    command = (words[0],)
    while len(command) < len(words) and re.fullmatch(r"[a-z0-9]+", words[len(command)]):
        longer = (*command, words[len(command)])
        # A word that is no subcommand is an operand, and asking for help with it is an error or the same help.
        if help_of(longer) is None or help_of(longer) == help_of(command):
            break
        command = longer
    return command


def invocations(page):
    """(where, what follows) of every program that the page shows."""
    text = (SOURCE / page).read_text(encoding="utf-8")
    for block in page_blocks.blocks_of(SOURCE, page):
        block.text = re.sub(r"\n +(?=\[)", " ", block.text)  # a synopsis over several lines
        for line in block.commands():
            if block.language in {"sh", "console", "text"}:
                for part in re.split(r"&&| \| |;", line.split(" #")[0]):
                    yield block.place, part.strip()
    for number, line in enumerate(page_blocks.FENCE.sub(lambda m: "\n" * m[0].count("\n"), text).splitlines(), 1):
        for code in CODE.findall(line):
            yield f"{page}:{number}", code


def wrong_options(where, shown):
    match = PROGRAM.search(" " + shown)
    if not match:
        return []
    words = (" " + shown)[match.start(1):].split(" -- ")[0].replace("[", " ").replace("]", " ").split()
    command = command_of(words)
    known = options_of(command)
    return [f"{where}: {' '.join(command)} has no {option}" for option in OPTION.findall(" ".join(words[len(command):]))
            if option not in known and option not in MISTAKES]


def test_the_help_of_a_subcommand_is_read():
    assert command_of("tandem drift why runs/demo".split()) == ("tandem", "drift", "why")
    assert command_of("tandem run run.yaml --set a=b".split()) == ("tandem", "run")
    assert "--set" in options_of(("tandem", "run"))
    assert wrong_options("here", "tandem run run.yaml --sett a=b") == ["here: tandem run has no --sett"]


@pytest.mark.parametrize("page", page_blocks.pages(SOURCE))
def test_every_option_that_a_page_shows_is_one(page):
    wrong = [one for where, shown in invocations(page) for one in wrong_options(where, shown)]
    assert not wrong, "\n".join(wrong)
