"""Links between pages lead to existing files and headings, and the rows of tables have as many cells as their heads."""
import re
from collections import Counter

from source_tree import ROOT, name

LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(r'<(?:img|source)\b[^>]*?\b(?:src|srcset)="([^"]+)"')
FOLDERS = ("cli", "common", "deploy", "docs", "drift_lab", "examples", "proto", "python/examples", "python/tandem_rl", "python/tests", "rollout_server", "tests", "trainer")
NAMED_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+)`")
NAMED_FILE = re.compile(r"`(\w+\.(?:cc|h|py|cu|cuh|proto))`")
EXAMPLES = {"x.cc", "x_test.cc"}
OTHERS = [ROOT / page for page in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*OTHERS, *sorted((ROOT / "docs").rglob("*.md"))]


def prose(text):
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors of the headings, as GitHub makes them: that of a second heading with the same words ends in -1."""
    found, seen = set(), Counter()
    for heading in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def broken_links(page):
    text = prose(page.read_text(encoding="utf-8"))
    for link in LINK.findall(text) + SOURCE.findall(text):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{name(page)}: {link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{name(page)}: {link}: no such heading"


def test_anchors_are_made_as_they_are_shown():
    assert anchors("# A: first, `b`\n## Which one?\n## [Which](x.md) one?\n```sh\n# not one\n```\n") == {
        "a-first-b", "which-one", "which-one-1"}


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("docs_links_test.name", lambda path: path.name)
    (tmp_path / "b.md").write_text("# There\n", encoding="utf-8")
    page = tmp_path / "a.md"
    page.write_text('[a](b.md#there) [b](b.md#here) [c](c.md) <img alt="d" src="d.webp" width="49%"> [e](https://e)\n', encoding="utf-8")
    assert list(broken_links(page)) == ["a.md: b.md#here: no such heading", "a.md: c.md: no such file",
                                        "a.md: d.webp: no such file"]


def test_links_of_every_page_lead_to_a_file_and_to_a_heading_in_it():
    broken = [line for page in PAGES for line in broken_links(page)]
    assert not broken, "\n".join(broken)


def test_files_that_pages_name_in_code_are_there():
    """Pages name `trainer/train_step.h`, a folder or a pattern, or a file without its folder."""
    last_parts = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    missing = []
    for page in PAGES:
        text = prose(page.read_text(encoding="utf-8"))
        missing += [f"{name(page)}: {path}" for path in NAMED_PATH.findall(text) if not any(ROOT.glob(path.rstrip("/")))]
        missing += [f"{name(page)}: {last}" for last in NAMED_FILE.findall(text) if last not in last_parts | EXAMPLES]
    assert not missing, "\n".join(missing)


def test_rows_of_a_table_have_as_many_cells_as_its_head():
    """A | inside code also ends a cell, unless it is escaped."""
    broken = []
    for page in PAGES:
        head = None
        for line in prose(page.read_text(encoding="utf-8")).split("\n"):
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
            if cells is not None and head is not None and cells != head:
                broken.append(f"{name(page)}: {line[:60]}: {cells - 1} cells, its head has {head - 1}")
            head = None if cells is None else head or cells
    assert not broken, "\n".join(broken)
