"""README.md is short, every page opens with its readers, and the site and the index have all pages."""
import re

import pytest

from source_tree import ROOT, name

MAX_README_LINES, MAX_MAP_ROWS = 120, 12
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# A page in mkdocs.yml, with or without a title.
NAV_PAGE = re.compile(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", re.MULTILINE)


def opening(page):
    """The text before the first section."""
    return page.read_text(encoding="utf-8").split("\n## ")[0].split("\n", 1)[1].strip()


def nav_pages():
    return NAV_PAGE.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1])


def test_the_readme_is_read_in_one_sitting():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_README_LINES
    the_map = "\n".join(lines).split("\n## Map\n")[1]
    assert len(re.findall(r"\]\(docs/[\w/]+\.md\)", the_map)) <= MAX_MAP_ROWS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_opens_with_whom_it_is_for_what_they_need_and_a_command(page):
    text = opening(page)
    assert text.startswith("For "), "whom is it for?"
    assert re.search(r"\bneed(s|ed)?\b", text), "what do they need?"
    assert re.search(r"\bfirst\s+command\b", text, re.IGNORECASE), "what do they type first?"
    assert "`" in text


def test_the_site_has_every_page_once_and_no_other():
    assert sorted(nav_pages()) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_the_index_leads_to_every_page():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in PAGES
               if page.name != "index.md" and f"({page.relative_to(DOCS).as_posix()})" not in text]
    assert not missing, missing
