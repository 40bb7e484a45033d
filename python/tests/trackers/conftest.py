"""What the tests of trackers share: run directories that a test writes, and real ones of a small model (small_run)."""
import sys

import pytest

from written_run import ROOT, WrittenRun

sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))


@pytest.fixture
def run(tmp_path):
    """A run directory that has begun, and has no steps."""
    return WrittenRun(tmp_path / "runs" / "written")
