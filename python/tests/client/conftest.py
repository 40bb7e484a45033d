"""The client against real rollout servers of a small random model. The modules of proto/ are generated into a folder of their own, so
that the tests write nothing into the source tree and never use modules that are out of date."""
import atexit
import pathlib
import shutil
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "support" / "python"), str(ROOT / "tests" / "end_to_end")]

import tandem_rl._proto
from tandem_rl._proto.generate import generate

STUBS = pathlib.Path(tempfile.mkdtemp(prefix="tandem-stubs-"))
atexit.register(shutil.rmtree, STUBS)
generate(STUBS)
tandem_rl._proto.__path__.insert(0, str(STUBS))

import small_run

from tandem_rl import launch


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """354 ids, 512 tokens of context."""
    return small_run.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(model):
    """Starts rollout servers, and ends them after the test."""
    servers = []

    def start_one(**options):
        server = launch.RolloutServer(model, dtype="fp32", environment={"OMP_NUM_THREADS": "1"}, **options)
        servers.append(server)
        server.start()
        return server
    yield start_one
    for server in servers:
        server.stop()
