"""Records the histories of the runs and servers that end-to-end tests start with small_run and rollout_client, and checks
them at the end of each test, so that a test fails if a guarantee was broken without being noticed."""
import os

import pytest

import check_history
import small_run

HISTORY = "TANDEM_TEST_HISTORY"  # the directory of histories, for rollout_client.Server and small_run.write_config


def pytest_configure(config):
    config.addinivalue_line("markers", "breaks(guarantees): this test breaks them on purpose, and the check must find it")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session", autouse=True)
def history_of_modules(tmp_path_factory):
    """The directory for servers that are used by several tests."""
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
