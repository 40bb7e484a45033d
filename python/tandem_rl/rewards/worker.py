"""The process in which Tandem runs reward functions of users: `python -m tandem_rl.rewards.worker`, started by the trainer.
It reads lines from descriptor 3 and writes lines to descriptor 4 (trainer/rewards/python/python_messages.h describes them),
so that whatever a function prints goes to the trainer's log and is never taken for an answer."""
import json
import os
import select
import signal
import sys
import threading
import traceback
from typing import Any

from . import functions
from .call import answer_all

IN, OUT = 3, 4


def _end_with_the_trainer() -> None:
    """Kills this process, and what it started, when the trainer has gone. A function may be at work then, so a thread
    waits for it: the trainer's end of the pipe is closed, which is seen without reading."""
    poll = select.poll()
    poll.register(IN, 0)
    while not any(happened & (select.POLLHUP | select.POLLERR) for _, happened in poll.poll()):
        pass
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _close_in_children() -> None:
    """A child that lives on must not keep the pipes of this process open."""
    for descriptor in (IN, OUT):
        try:
            os.close(descriptor)
        except OSError:
            pass


class Worker:
    def __init__(self) -> None:
        for descriptor in (IN, OUT):
            os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=_close_in_children)
        self.input = os.fdopen(IN, "rb", closefd=False)
        self.functions: list[functions.Function] = []
        self.form = "auto"

    def write(self, line: dict[str, Any]) -> None:
        """Surrogates, which stand for bytes that were no UTF-8, are written as escapes."""
        data = (json.dumps(line, allow_nan=False) + "\n").encode("ascii")
        while data:
            data = data[os.write(OUT, data):]

    def load(self, hello: dict[str, Any]) -> None:
        self.form = hello["completions"]
        for named in hello["functions"]:
            self.functions.append(functions.load(named["name"], named["spec"]))
        functions.give_kwargs(self.functions, hello["kwargs"])
        for function in self.functions:
            functions.check_arguments(function, hello["row"] if isinstance(hello["row"], dict) else None)

    def run(self) -> int:
        hello = self.input.readline()
        if not hello:
            return 0
        threading.Thread(target=_end_with_the_trainer, daemon=True).start()
        try:
            self.load(json.loads(hello))
        except functions.LoadError as error:
            cause = error.__cause__
            trace = "".join(traceback.format_exception(cause)).rstrip() if cause is not None else ""
            self.write({"error": str(error), "traceback": trace})
            return 2
        self.write({"ready": True})
        for line in self.input:
            request = json.loads(line)
            answer_all(self.functions[request["function"]], request["groups"], self.form, self.write)
        return 0


def main() -> int:
    try:
        worker = Worker()
    except OSError:
        print("tandem_rl.rewards.worker is started by Tandem (reward.python of a run file); `tandem reward FILE.py --data "
              "DATA` tries a function", file=sys.stderr)
        return 2
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
