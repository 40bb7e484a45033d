"""Links between pages lead somewhere: the file is there, and so is the heading that an anchor names."""
import re

from source_tree import ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(text):
    """Of every heading, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_anchors_are_made_as_they_are_shown():
    assert anchors("# A: first, `b`\n## Which one?\n") == {"a-first-b", "which-one"}


def test_links_of_every_page_lead_to_a_file_and_to_a_heading_in_it():
    broken = []
    for page in PAGES:
        for link in LINK.findall(prose(page.read_text(encoding="utf-8"))):
            path, _, anchor = link.partition("#")
            if ":" in path:
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                broken.append(f"{page.name}: {link}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                broken.append(f"{page.name}: {link}: no such heading")
    assert not broken, "\n".join(broken)


def test_rows_of_a_table_have_as_many_cells_as_its_head():
    """A | inside code ends the cell too, unless it is escaped."""
    broken = []
    for page in [*PAGES, ROOT / "SECURITY.md"]:
        head = None
        for number, line in enumerate(prose(page.read_text(encoding="utf-8")).split("\n"), 1):
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
            if cells is not None and head is not None and cells != head:
                broken.append(f"{page.name}: {line[:60]}: {cells - 1} cells, its head has {head - 1}")
            head = None if cells is None else head or cells
    assert not broken, "\n".join(broken)
