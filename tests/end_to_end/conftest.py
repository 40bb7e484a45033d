"""Every end-to-end test records the history of the runs and servers that it starts through small_run and rollout_client,
and is checked at its end: a test that passes over a broken guarantee fails here."""
import os

import pytest

import check_history

HISTORY = "TANDEM_TEST_HISTORY"  # where rollout_client.Server and small_run.write_config have processes record


def pytest_configure(config):
    config.addinivalue_line("markers", "breaks(guarantees): this test breaks them on purpose, and the check must say so")


@pytest.fixture(scope="session", autouse=True)
def history_of_modules(tmp_path_factory):
    """Of servers that outlive one test."""
    folder = tmp_path_factory.mktemp("history")
    os.environ[HISTORY] = str(folder)
    yield folder
    del os.environ[HISTORY]


@pytest.fixture(autouse=True)
def checked_history(request, history_of_modules, tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    os.environ[HISTORY] = str(folder)
    yield folder
    os.environ[HISTORY] = str(history_of_modules)
    report = check_history.check([history_of_modules, folder])
    marker = request.node.get_closest_marker("breaks")
    expected = set(marker.args) if marker else set()
    assert {violation.guarantee for violation in report.violations} == expected, "\n".join(map(str, report.violations))
