"""docs/dev/tour.md is correct: its six files exist, are short, and have the names that the page mentions."""
import re

from source_tree import ROOT

PAGE = (ROOT / "docs" / "dev" / "tour.md").read_text(encoding="utf-8")
NUM_FILES, MAX_LINES = 6, 900
STOP = re.compile(r"^## \d+\. [^`\n]*`([\w/.]+)`\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| [^|]+ \| `([\w/.]+)` \| `(\w+)` \|$", re.MULTILINE)
# The names at the start of a bullet, which are in the file of its section.
BULLET = re.compile(r"^\* ((?:`\w+`(?:, | and )?)+)", re.MULTILINE)
PATH = re.compile(r"`((?:trainer|rollout_server|common|cli|proto|drift_lab|tests)/[\w/.]*)`")


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def has(path, name):
    return re.search(rf"\b{name}\b", text(path)) is not None


def stops():
    return STOP.findall(PAGE)


def test_it_is_a_tour_of_six_files_that_can_be_read_in_an_hour():
    lines = {path: len(text(path).splitlines()) for path, _ in stops()}
    assert len(lines) == NUM_FILES, lines
    assert sum(lines.values()) < MAX_LINES, lines


def test_every_path_of_the_page_is_there():
    missing = [path for path in PATH.findall(PAGE) if not (ROOT / path).exists()]
    assert not missing, missing


def test_what_a_stop_points_at_is_in_its_file():
    missing, count = [], 0
    for path, section in stops():
        for words in BULLET.findall(section):
            for name in re.findall(r"`(\w+)`", words):
                count += 1
                missing += [] if has(path, name) else [f"{path}: {name}"]
    assert not missing and count >= NUM_FILES, missing


def test_what_the_table_points_at_is_in_its_file():
    rows = ROW.findall(PAGE)
    missing = [f"{path}: {name}" for path, name in rows if not has(path, name)]
    assert not missing and len(rows) >= 10, missing
