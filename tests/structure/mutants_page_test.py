"""docs/dev/verification.md ends with the table that tests/mutants/run_mutants.py --table writes: a row per patch."""
import os
import pathlib
import sys

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests" / "mutants"))

import run_mutants  # noqa: E402

PAGE = SOURCE / "docs" / "dev" / "verification.md"


def test_the_page_has_a_row_for_each_patch_as_the_program_writes_it():
    caught = [(mutant, "caught") for mutant in run_mutants.all_mutants()]
    written = run_mutants.introduction(PAGE) + run_mutants.table(caught)
    assert sorted(written.splitlines()) == sorted(PAGE.read_text(encoding="utf-8").splitlines())


def test_the_introduction_is_the_text_before_the_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Words\n\nof somebody\n\n" + run_mutants.table([]) + "| 9 | gone | `t` `f` | stale |\n", encoding="utf-8")
    assert run_mutants.introduction(page) == "# Words\n\nof somebody\n\n"


def test_a_page_without_the_table_is_refused_before_any_work(tmp_path):
    with pytest.raises(SystemExit, match="no table that opens with"):
        run_mutants.introduction(tmp_path / "absent.md")
