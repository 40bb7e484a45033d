"""What the tests of trackers share: run directories that a test writes, and real ones of a small model (small_run)."""
import shutil
import sys

import pytest

from written_run import ROOT, WrittenRun

sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))


@pytest.fixture
def run(tmp_path):
    """A run directory that has begun, and has no steps."""
    return WrittenRun(tmp_path / "runs" / "written")


@pytest.fixture(scope="session")
def database_of_tables(tmp_path_factory):
    """A file with MLflow's tables. They take seconds to make; command_test.py has the tracker make them."""
    import mlflow
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(database_of_tables, tmp_path):
    """The URI of an empty database of MLflow."""
    return f"sqlite:///{shutil.copy(database_of_tables, tmp_path / 'mlflow.db')}"
