"""The client of environments of OpenEnv, with a server of our own that speaks its messages (openenv_server_test.py runs OpenEnv's)."""
import json
import socket
import threading

import pytest
from websockets.sync.server import serve

from environment_worker import user


class Guess:
    """A server with an environment that guesses a number, and that has seen `seen`."""

    def __init__(self):
        self.seen = []
        self.server = serve(self.session, "127.0.0.1", 0)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"

    def session(self, connection):
        secret = 0
        for line in connection:
            message = json.loads(line)
            self.seen.append((connection.request.path, message))
            if message["type"] == "close":
                return
            if message["type"] == "reset":
                secret = message["data"]["seed"]
                said = {"observation": {"text": f"Below {message['data'].get('highest', 10)}?", "tries": 0, "metadata": {}},
                        "reward": None, "done": False}
            elif message["data"].get("message") == "error":
                connection.send(json.dumps({"type": "error", "data": {"message": "no such action", "code": "VALIDATION_ERROR"}}))
                continue
            elif message["data"].get("message") == "break":
                return
            else:
                guess = int(message["data"].get("guess", message["data"].get("message")))
                hint = "" if guess == secret else "higher" if guess < secret else "lower"
                said = {"observation": {"text": hint, "tries": 1, "metadata": {"distance": abs(guess - secret)}},
                        "reward": float(guess == secret), "done": guess == secret}
            connection.send(json.dumps({"type": "observation", "data": said}))


@pytest.fixture
def guess():
    server = Guess()
    yield server
    server.server.shutdown()


def test_two_episodes_are_played_over_connections_of_their_own(start, guess):
    worker = start(environment={"kind": "openenv", "spec": guess.url + "/"}, kwargs={"highest": "20"})
    assert worker.hello == {"ready": True, "tools": []}
    assert worker.open(1, seed=7, prompt="Below 20?") == {"episode": 1, "turn": 0, "messages": [user("Below 20?")]}
    assert worker.open(2, seed=3)["messages"] == [user("Below 20?")]
    assert worker.step("5", 1, 1) == {"episode": 1, "turn": 1, "messages": [user("higher")], "reward": 0, "done": False,
                                      "info": {"distance": 2}}
    assert worker.step('<think>3?</think>{"guess": 4}', 1, 2)["messages"] == [user("lower")]
    assert worker.step("7", 2, 1) == {"episode": 1, "turn": 2, "messages": [], "reward": 1, "done": True, "info": {"distance": 0}}
    assert guess.seen[:3] == [("/ws", {"type": "reset", "data": {"highest": 20, "seed": 7}}),
                              ("/ws", {"type": "reset", "data": {"highest": 20, "seed": 3}}),
                              ("/ws", {"type": "step", "data": {"message": "5"}})]


def test_fields_of_action_and_observation_can_be_named(start, guess):
    worker = start(environment={"kind": "openenv", "spec": guess.url}, kwargs={"action": "guess", "observation": "tries"})
    assert worker.open(seed=7)["messages"] == [user("0")]
    assert worker.step("5")["messages"] == [user("1")]
    assert guess.seen[-1] == ("/ws", {"type": "step", "data": {"guess": "5"}})
    worker = start(environment={"kind": "openenv", "spec": guess.url}, kwargs={"observation": "texts"})
    assert "the observation has no field texts, which environment.kwargs.observation names; it has text, tries" in \
        worker.open()["error"]


def test_rows_are_written_and_their_prompts_checked(start, guess):
    worker = start(environment={"kind": "openenv", "spec": guess.url})
    assert worker.rows(1, 3) == [{"row": {"prompt": [user("Below 10?")], "answer": "", "seed": 3}}, {"rows": 1}]
    assert "the prompt does not have" in worker.open(prompt="another")["error"]


def test_an_episode_that_moves_is_played_again(start, guess):
    worker = start(environment={"kind": "openenv", "spec": guess.url})
    worker.open(1, seed=7, history=[{"text": "5", "messages": [user("higher")]}])
    assert worker.step("8", 2)["messages"] == [user("lower")]
    assert "did not repeat itself" in worker.open(2, seed=2, history=[{"text": "5", "messages": [user("higher")]}])["error"]


def test_errors_name_the_server(start, guess):
    worker = start(environment={"kind": "openenv", "spec": guess.url})
    url = guess.url.replace("http", "ws") + "/ws"
    worker.open(1)
    assert worker.step("error", 1, 1)["error"] == f"{url}: the server refused step: no such action (VALIDATION_ERROR)"
    worker.open(2)
    assert worker.step("break", 1, 2)["error"].startswith(f"{url}: the connection broke during step (")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        reply = start(environment={"kind": "openenv", "spec": f"http://{nobody}"}).open()
    assert reply["error"].startswith(f"ws://{nobody}/ws: no connection to the server of the environment"), reply
    assert "is no address of a server" in start(environment={"kind": "openenv", "spec": "host:8000"}).hello["error"]


def test_without_the_package_the_start_says_so(start, tmp_path):
    (tmp_path / "websockets.py").write_text("raise ImportError('none here')\n", encoding="utf-8")
    worker = start(environment={"kind": "openenv", "spec": "http://host:1"})
    assert "pip install websockets" in worker.hello["error"]
