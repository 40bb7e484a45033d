"""The process in which Tandem runs reward functions of users: `python -m tandem_rl.rewards.worker`, started by the trainer.
It reads lines from descriptor 3 and writes lines to descriptor 4 (trainer/rewards/python/python_messages.h describes them),
so that whatever a function prints goes to the trainer's log and is never taken for an answer."""
import json
import sys
from typing import Any

from ..workers.loading import LoadError
from ..workers.pipe import Pipe, opened
from . import functions
from .call import answer_all


class Worker:
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.functions: list[functions.Function] = []
        self.form = "auto"

    def load(self, hello: dict[str, Any]) -> None:
        self.form = hello["completions"]
        for named in hello["functions"]:
            self.functions.append(functions.load(named["name"], named["spec"]))
        functions.give_kwargs(self.functions, hello["kwargs"])
        for function in self.functions:
            functions.check_arguments(function, hello["row"] if isinstance(hello["row"], dict) else None)

    def run(self) -> int:
        hello = self.pipe.hello()
        if hello is None:
            return 0
        try:
            self.load(hello)
        except LoadError as error:
            self.pipe.write_load_error(error)
            return 2
        self.pipe.write({"ready": True})
        for line in self.pipe.input:
            request = json.loads(line)
            answer_all(self.functions[request["function"]], request["groups"], self.form, self.pipe.write)
        return 0


def main() -> int:
    pipe = opened("tandem_rl.rewards.worker", "(reward.python of a run file); `tandem reward FILE.py --data DATA` tries a "
                  "function")
    return Worker(pipe).run() if pipe is not None else 2


if __name__ == "__main__":
    sys.exit(main())
