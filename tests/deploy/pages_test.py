"""The run files and command lines of pages are checked with the programs, so that they work when they are pasted."""
import os
import pathlib
import re
import subprocess

import pytest

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
PAGES = [SOURCE / "README.md", SOURCE / "SECURITY.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.M | re.S)
SECTIONS = ("launch", "server", "trainer", "drift")
ON_PATH = ("`tandem` is on `PATH` after `make install`, or in a built checkout after "
           "`export PATH=$PWD/build/release/bin:$PATH`")


def text_of(page):
    return page.read_text(encoding="utf-8")


def call(*arguments, cwd=None):
    return subprocess.run([TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, cwd=cwd,
                          stdin=subprocess.DEVNULL)


def name_of(page):
    return page.relative_to(SOURCE).as_posix()


# Run files.

def run_files():
    """(page and number, text) of every YAML block that is a run file or a part of one."""
    for page in PAGES:
        for number, (language, block) in enumerate(BLOCK.findall(text_of(page))):
            tops = re.findall(r"^(\w+):", block, re.M)
            if language == "yaml" and not {"apiVersion", "rules"} & set(tops):  # those belong to Kubernetes
                yield pytest.param(block, id=f"{name_of(page)}-{number}")


def test_there_are_run_files_to_check():
    assert len(list(run_files())) >= 5


def write_rewards(block, folder):
    """The reader's files of reward functions that a block names, FILE.py:NAME or PACKAGE.MODULE:NAME."""
    for place, function in re.findall(r"\b(my_[\w.]+):(\w+)", block):
        path = folder / (place if place.endswith(".py") else place.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"def {function}(completions, **kwargs):\n    return [0.0 for _ in completions]\n")


@pytest.mark.parametrize("block", list(run_files()))
def test_a_pasted_run_file_is_understood(block, tmp_path, monkeypatch):
    """Exit code 2 would be an unknown name, a wrong type or a value out of range. Exit code 3 is a missing model or file, which
    is not a mistake of the block."""
    monkeypatch.setenv("VIRTUAL_ENV", str(SOURCE / ".deps" / "venv"))  # functions of TRL
    write_rewards(block, tmp_path)
    config = tmp_path / "run.yaml"
    config.write_text(block)
    whole = re.search(r"^  model:|^stages:", block, re.M)
    sets = [] if whole else ["--set", "trainer.model=MODEL"]
    sets += [] if re.search(r"\b(train|mixture):", block) else ["--set", "trainer.data.train=train.jsonl"]
    done = call("run", config, "--dry-run", *sets, cwd=tmp_path)
    assert done.returncode in (0, 3), done.stderr


# Names of options.

@pytest.fixture(scope="module")
def known_options():
    reference = call("run", "--help-config").stdout
    names = set(re.findall(r"^\| `([\w.]+)` \|", reference, re.M))
    return names | set(re.findall(r"^## ([\w.]+)$", reference, re.M))


def named_in(text):
    """Dotted names of options in code of pages: `trainer.steps`, server.engine.dtype=fp32."""
    code = "\n".join([block for _, block in BLOCK.findall(text)] + re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)))
    names = re.findall(rf"(?<![\w./-])(?:{'|'.join(SECTIONS)})(?:\.\w+)+(?:\.\*)?(?![\w/(])", code)
    files = re.compile(r"\.(cc|h|py|md|yaml|yml|json|jsonl|log|sh|proto|port|html|txt)$")
    return {name for name in names if not files.search(name)}


def test_names_are_found_where_code_has_them():
    assert named_in("`trainer.steps=3` server.x `trainer/server.cc` `trainer.log.*` ```\n`server.cc`") == {
        "trainer.steps", "trainer.log.*"}
    assert named_in("```\ntandem run --set server.engine.dtype=fp32\n```\n") == {"server.engine.dtype"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "configuration.md"], ids=name_of)
def test_every_option_that_a_page_names_is_one_of_the_binary(page, known_options):
    known = known_options  # the reference of options is compared as a whole
    assert len(known) > 150
    misspelt = {"trainer.prompts_per_stepp"}  # the example of an unknown name in the table of bad input
    maps = {"trainer.reward.weights"}  # the names of entries in a mapping are chosen by the reader
    unknown = [name for name in sorted(named_in(text_of(page)) - misspelt)
               if name.removesuffix(".*") not in known and not any(name.startswith(one + ".") for one in maps)]
    assert not unknown, unknown


def test_the_settings_of_every_correction_can_be_set(tmp_path):
    """The second column of the table of methods, which can be pasted after --set."""
    (tmp_path / "run.yaml").write_text("trainer: {model: MODEL, data: {train: train.jsonl}}\n")
    rows = re.findall(r"^\| `\w+` \| `((?:trainer\.[\w.]+=\S+ ?)+)` \|", text_of(SOURCE / "docs/corrections.md"), re.M)
    assert len(rows) > 20
    for settings in rows:
        sets = [word for setting in settings.split() for word in ("--set", setting)]
        done = call("run", "run.yaml", "--dry-run", *sets, cwd=tmp_path)
        assert done.returncode == 3, (settings, done.stderr)  # the model does not exist


# Command lines.

def commands():
    """(page, command line) of every line of a block that calls tandem. Continued lines are joined."""
    for page in PAGES:
        for _, block in BLOCK.findall(text_of(page)):
            lines = re.sub(r"\\\n|\n(?= {10,})", " ", block).split("\n")
            for line in lines:
                found = re.search(r"(?:^|\| |&& )\s*(?:[\w./]*/)?(tandem [^|&#]*)", line) if "[" not in line else None
                found = found or re.match(r"\s*(tandem .*)", line)
                if found:
                    yield name_of(page), found.group(1).split("   #")[0]


@pytest.fixture(scope="module")
def helps():
    """The help of each command. Each is requested once."""
    seen = {}

    def help_of(words):
        if words not in seen:
            seen[words] = call(*words, "--help").stdout
        return seen[words]
    return help_of


def test_every_flag_that_a_page_shows_is_one_of_its_command(helps):
    unknown, count = [], 0
    for page, line in commands():
        words = ()
        for word in line.split()[1:]:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", word) or f"\n  {word} " not in helps(words):
                break
            words += (word,)
        own = re.split(r" -- | --$", line)[0]
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", own):
            count += 1
            if not re.search(rf"{re.escape(flag)}\b(?!-)", helps(words)):
                unknown.append(f"{page}: {flag} of `{line.strip()}`")
    assert count > 150
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_with_commands_says_once_how_tandem_gets_onto_path(page):
    text = text_of(page)
    shows = any(re.match(r"\s*(.* && )?tandem ", line) for _, block in BLOCK.findall(text) for line in block.split("\n"))
    assert text.count(ON_PATH) == (1 if shows else 0)
    assert "build/release/bin/tandem " not in text
