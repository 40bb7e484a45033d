"""An adapter as a process, asked one request after the other."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))
MODEL = ROOT / "models/smollm2-135m-instruct"


class Adapter:
    def __init__(self, module, *arguments, python=sys.executable):
        self.process = subprocess.Popen([python, "-m", module, *map(str, arguments)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, cwd=ROOT / "python")
        self.number = 0

    def send(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, do, **fields):
        self.number += 1
        reply = self.send(json.dumps({"id": self.number, "do": do, **fields}))
        assert reply["id"] == self.number
        return reply

    def end(self):
        self.process.stdin.close()
        rest = self.process.stdout.read()
        return self.process.wait(timeout=60), rest


@pytest.fixture(scope="module")
def adapters():
    """Starts adapters, and ends them after the last test of the file."""
    started = []

    def start(*arguments, **named):
        started.append(Adapter(*arguments, **named))
        return started[-1]

    yield start
    for adapter in started:
        if adapter.process.poll() is None:
            adapter.process.kill()
        adapter.process.wait(timeout=60)
