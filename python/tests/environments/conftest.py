import pytest

from environment_worker import EnvironmentWorker


@pytest.fixture
def start(tmp_path):
    """Starts workers of python environments (the class Env of my_env.py) or of what else is named."""
    workers = []

    def make(text="", environment=None, **more):
        workers.append(EnvironmentWorker(tmp_path, environment or {"kind": "python", "spec": "my_env.py:Env"}, text, **more))
        return workers[-1]
    yield make
    for worker in workers:
        worker.kill()
