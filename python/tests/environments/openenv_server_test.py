"""Episodes on a server of OpenEnv itself. The package and what it needs are installed by deploy/setup/install.sh --engines into an
environment of their own."""
import os
import subprocess

import pytest

from environment_worker import user
from free_ports import free_port
from waiting import wait_until

PYTHON = os.path.join(os.environ["TANDEM_SOURCE"], ".deps", "engines", "openenv", "bin", "python")

# As `openenv init` writes environments.
SERVER = '''
import random, sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class GuessAction(Action):
    message: str

class GuessObservation(Observation):
    hint: str = ""
    tries: int = 0

class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, highest=10, **kwargs):
        self.highest, self.secret, self.tries = highest, random.Random(seed).randint(1, highest), 0
        return GuessObservation(hint=f"Guess a number up to {highest}.")

    def step(self, action, timeout_s=None, **kwargs):
        self.tries += 1
        guess = int(action.message)
        hint = "right" if guess == self.secret else "higher" if guess < self.secret else "lower"
        return GuessObservation(hint=hint, tries=self.tries, reward=float(guess == self.secret), done=guess == self.secret,
                                metadata={"distance": abs(guess - self.secret)})

    @property
    def state(self):
        return State(step_count=self.tries)

app = create_fastapi_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=2)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="info")
'''


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "server.py").write_text(SERVER, encoding="utf-8")
    port = free_port()
    with open(folder / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen([PYTHON, "server.py", str(port)], cwd=folder, stdout=log, stderr=log)
    wait_until(lambda: "Uvicorn running" in (folder / "log").read_text() or server.poll() is not None, "no server of OpenEnv")
    assert server.poll() is None, (folder / "log").read_text()
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait(timeout=60)


def test_two_episodes_beside_each_other(start, url):
    worker = start(environment={"kind": "openenv", "spec": url}, kwargs={"highest": "3", "observation": "hint"})
    first = [user("Guess a number up to 3.")]
    # random.Random(0).randint(1, 3) is 2, random.Random(1) gives 1.
    assert worker.open(1, seed=0) == {"episode": 1, "turn": 0, "messages": first}
    assert worker.open(2, seed=1)["messages"] == first
    assert worker.step("1", 1, 1) == {"episode": 1, "turn": 1, "messages": [user("higher")], "reward": 0, "done": False,
                                      "info": {"distance": 1}}
    assert worker.step("3", 1, 2)["messages"] == [user("lower")]
    assert worker.step("2", 2, 1) == {"episode": 1, "turn": 2, "messages": [user("right")], "reward": 1, "done": True,
                                      "info": {"distance": 0}}
    reply = worker.open(3)
    assert "CAPACITY_REACHED" in reply["error"] and "raise max_concurrent_envs" in reply["error"], reply
    assert worker.step("1", 2, 2)["reward"] == 1
    worker.close(1)
    worker.close(2)


def test_an_action_that_the_server_does_not_know_is_an_error_of_the_episode(start, url):
    worker = start(environment={"kind": "openenv", "spec": url}, kwargs={"action": "text"})
    replies = []

    def opened():
        replies.append(worker.open(len(replies)))
        return "error" not in replies[-1]
    wait_until(opened, "a session of the server that is free again")
    assert replies[-1]["messages"] == [user("Guess a number up to 10.")], "hint is the only field with text"
    reply = worker.step("1", number=len(replies) - 1)
    assert "the server refused step" in reply["error"] and "message" in reply["error"], reply
