"""Knobs that pages name are the program's: docs/configuration.md is what the binary prints (front_door_test.py holds it to
that), and every name, every option block and every row of a table on the other pages is held to it."""
import os
import pathlib
import re
import sys

import pytest
import yaml

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "support"))

import page_blocks  # noqa: E402

ROOTS = ("launch", "server", "trainer", "drift")
NAME = re.compile(r"(?<![\w./:-])((?:%s)(?:\.[a-z_0-9]+)+)(?![\w(]|\.[a-z])" % "|".join(ROOTS))
PAGES = [page for page in page_blocks.pages(SOURCE) if page != "docs/configuration.md"] + ["SECURITY.md"]

ROWS = dict(re.findall(r"^\| `([a-z_.0-9]+)` \| ([^|]+?) \|", (SOURCE / "docs/configuration.md").read_text(encoding="utf-8"),
                       re.MULTILINE))
SECTIONS = {".".join(name.split(".")[:i]) for name in ROWS for i in range(1, name.count(".") + 1)}
SHOWN_AS_MISTAKES = {"trainer.prompts_per_stepp"}


def read(page):
    return (SOURCE / page).read_text(encoding="utf-8")


def leaves(tree, path=()):
    """(dotted name, value) of everything a run file sets; mappings that are one knob's value stay whole."""
    for key, value in tree.items():
        name = ".".join((*path, str(key)))
        if isinstance(value, dict) and not ROWS.get(name, "").startswith("mapping"):
            yield from leaves(value, (*path, str(key)))
        else:
            yield name, value


def test_the_reference_was_read():
    assert len(ROWS) > 200 and "trainer.sampling" in SECTIONS


@pytest.mark.parametrize("page", PAGES)
def test_every_knob_that_a_page_names_is_one(page):
    wrong = {name for name in NAME.findall(read(page)) if name not in ROWS and name not in SECTIONS}
    assert not wrong - SHOWN_AS_MISTAKES


@pytest.mark.parametrize("page", PAGES)
def test_option_blocks_can_be_pasted_into_a_run_file(page):
    for block in page_blocks.blocks_of(SOURCE, page):
        if block.language != "yaml":
            continue
        tree = yaml.safe_load(block.text)
        if not set(tree) <= set(ROOTS):
            assert not set(tree) & {root.split(".")[0] for root in (name.split(".", 1)[1] for name in ROWS)}, (
                f"{block.place}: knobs without the section they stand in; begin with {' or '.join(ROOTS)}")
            continue
        unknown = [name for name, _ in leaves(tree) if name not in ROWS]
        assert not unknown, f"{block.place}: {unknown}"


def test_settings_of_the_table_of_corrections_are_knobs():
    page = read("docs/corrections.md")
    settings = re.findall(r"(?<![\w.])(?:correction|loss)\.[a-z_0-9]+(?==)", page)
    assert len(settings) > 30
    assert {name for name in settings if f"trainer.{name}" not in ROWS} == set()
    assert "Settings are knobs of `trainer`" in page


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page):
    """A | within a cell ends it, in code too: it is written \\|."""
    text = page_blocks.FENCE.sub(lambda match: "\n" * match[0].count("\n"), read(page))
    width, wrong = None, []
    for number, line in enumerate(text.splitlines(), 1):
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        if cells is not None and width is not None and cells != width:
            wrong.append(f"{page}:{number}")
        width = None if cells is None else width or cells
    assert not wrong
