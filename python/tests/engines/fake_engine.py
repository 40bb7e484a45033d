"""An engine without a model, for tests of the protocol and of `tandem drift compare`: every id of a vocabulary of 8 has
log-prob -log(8), and it prints where a library would. `--option` changes one thing that it does: `dies` (at the first
sample), `prints`, `refuses=score`, `raises=sample`, `off=N` (added to what it scores), `unstarted`."""
import math
import os
import random
import sys

from tandem_rl.engines.protocol import Arguments, run
from tandem_rl.engines.requests import Completion, Info, Refused, RowScore, SampleRequest, ScoreRequest

NATS = -math.log(8)


class FakeEngine:
    def __init__(self, started: Arguments) -> None:
        started.allow("dies", "prints", "refuses", "raises", "off", "unstarted")
        if "unstarted" in started.options:
            raise RuntimeError("no memory for this model")
        self.options = started.options
        self.loaded = started.model

    def info(self) -> Info:
        return Info("fake", "1", "float32", ["sample", "score", "load_weights"])

    def sample(self, request: SampleRequest) -> list[Completion]:
        if "dies" in self.options:
            print("the last words of the engine", file=sys.stderr, flush=True)
            os._exit(7)
        if "prints" in self.options:
            print("a library says hello")
            os.write(1, b"and so does C\n")
        if self.options.get("raises") == "sample":
            raise KeyError("logits")
        rng = random.Random(request.seed)
        completions = []
        for index, _ in enumerate(request.prompts):
            for _ in range(request.n):
                ids = [rng.randrange(2, 8) for _ in range(request.max_new_tokens)]
                completions.append(Completion(index, ids, [NATS] * len(ids), "length"))
        return completions

    def score(self, request: ScoreRequest) -> list[RowScore]:
        if self.options.get("refuses") == "score":
            raise Refused("unsupported", "this engine does not score")
        off = float(self.options.get("off", 0))
        return [RowScore([NATS + off] * (len(row.token_ids) - row.prompt_length)) for row in request.rows]

    def load_weights(self, directory: str) -> None:
        self.loaded = directory


if __name__ == "__main__":
    sys.exit(run("fake_engine", FakeEngine))
