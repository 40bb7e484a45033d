"""The two descriptors over which a worker and the trainer exchange lines of JSON, and the end of a worker with its trainer.
Used by rewards/worker.py and environments/worker.py."""
import json
import os
import re
import select
import signal
import sys
import threading
import traceback
from typing import Any

from .loading import LoadError

IN, OUT = 3, 4
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def plain(text: str) -> str:
    """The text as it reaches the trainer: with U+FFFD for each lone surrogate."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def _end_with_the_trainer() -> None:
    """Kills this process, and what it started, when the trainer has gone. Code of the user may be at work then, so a thread
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


class Pipe:
    """Lines from descriptor 3 and to descriptor 4. Raises OSError where the process was not started by the trainer."""

    def __init__(self) -> None:
        for descriptor in (IN, OUT):
            os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=_close_in_children)
        self.input = os.fdopen(IN, "rb", closefd=False)

    def hello(self) -> dict[str, Any] | None:
        """The first line, which says what to load; None if the trainer has gone before. From here on the process ends with
        the trainer."""
        line = self.input.readline()
        if not line:
            return None
        threading.Thread(target=_end_with_the_trainer, daemon=True).start()
        first: dict[str, Any] = json.loads(line)
        return first

    def write(self, line: dict[str, Any]) -> None:
        """Lone surrogates, which no UTF-8 can hold, are written as U+FFFD."""
        data = (plain(json.dumps(line, allow_nan=False, ensure_ascii=False)) + "\n").encode("utf-8")
        while data:
            data = data[os.write(OUT, data):]

    def write_load_error(self, error: LoadError) -> None:
        cause = error.__cause__
        trace = "".join(traceback.format_exception(cause)).rstrip() if cause is not None else ""
        self.write({"error": str(error), "traceback": trace})


def opened(module: str, what: str) -> Pipe | None:
    """The pipe, or None after a line to a person who started the module by hand. `what`: what starts it."""
    try:
        return Pipe()
    except OSError:
        print(f"{module} is started by Tandem {what}", file=sys.stderr)
        return None
