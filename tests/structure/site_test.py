"""The site of the pages is built without a warning, and its pages have no links to .md files and no escaped bars."""
import os
import re
import subprocess

from source_tree import ROOT

MKDOCS = ROOT / ".deps" / "docs-venv" / "bin" / "mkdocs"


def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run([MKDOCS, "build", "--strict", "--site-dir", tmp_path], cwd=ROOT, text=True, check=False,
                          capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("index.html")]
    assert len(pages) > 20
    assert not [text for text in pages if re.search(r'href="[^"]*\.md["#]|<code>[^<]*\\\|[^<]*</code></td>', text)]
    assert (tmp_path / "search" / "search_index.json").is_file()
