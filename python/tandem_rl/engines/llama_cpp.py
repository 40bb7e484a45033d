"""llama.cpp behind the protocol of docs/engines.md, by llama-cpp-python. Log-probs are computed here from the logits of
each position: those that the library returns with completions are of other positions in some of its versions.

--dtype is the type of the weights' file: f32, bf16, f16 (default), q8_0, q4_K. The file is made from the model directory
(gguf_file.py) and kept in the cache folder. Options: gguf (a file in place of one that is made), cache (folder; default
$XDG_CACHE_HOME/tandem/gguf), n_ctx (default 1024), threads."""
from __future__ import annotations

import hashlib
import os
import pathlib
import sys
from typing import Any

import numpy as np

from .gguf_file import TYPES, make_gguf
from .numpy_draws import draw, drawn_from, entropy, log_softmax
from .protocol import Arguments, run
from .requests import Completion, Info, Refused, RowScore, SampleRequest, ScoreRequest

# The dtype names of records headers.
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "q8_0": "int8", "q4_K": "int4"}


class LlamaCppEngine:
    """One sequence at a time. The prompt's KV is kept for all its completions."""

    def __init__(self, started: Arguments) -> None:
        import llama_cpp
        started.allow("gguf", "cache", "n_ctx", "threads")
        self._library: Any = llama_cpp
        self._started = started
        self._kind = {"": "f16", "fp32": "f32", "fp16": "f16"}.get(started.dtype, started.dtype)
        if self._kind not in TYPES:
            raise Refused("invalid", f"--dtype: expected one of {', '.join(TYPES)}, found {started.dtype!r}")
        self._llama: Any = None
        self.load_weights(started.model)

    def _file(self, directory: str) -> str:
        if directory == self._started.model and "gguf" in self._started.options:
            return self._started.options["gguf"]
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache = self._started.option("cache", os.path.join(home, "tandem", "gguf"))
        digest = hashlib.sha256()
        for source in sorted(pathlib.Path(directory).glob("*.safetensors")) + [pathlib.Path(directory) / "config.json"]:
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
        path = os.path.join(cache, f"{digest.hexdigest()[:16]}-{self._kind}.gguf")
        if not os.path.exists(path):
            try:
                make_gguf(directory, path, self._kind)
            except (ValueError, KeyError, OSError) as error:
                raise Refused("invalid", f"{directory}: no GGUF file can be made of it: {error}") from None
        return path

    def load_weights(self, directory: str) -> None:
        path = self._file(directory)
        if self._llama is not None:
            self._llama.close()
        self._llama = self._library.Llama(
            model_path=path, n_ctx=self._started.integer("n_ctx", 1024), logits_all=True, verbose=False,
            n_threads=self._started.integer("threads", os.cpu_count() or 1))
        self._vocab = int(self._llama.n_vocab())
        self._end = int(self._llama.token_eos())

    def info(self) -> Info:
        return Info("llama.cpp", f"llama-cpp-python {self._library.__version__}", _DTYPES[self._kind],
                    ["sample", "score", "load_weights"], {"file": self._kind, "kv": "float16"})

    def _check(self, ids: list[int], more: int) -> None:
        if max(ids) >= self._vocab:
            raise Refused("invalid", f"token id {max(ids)} is outside the vocabulary of {self._vocab}")
        if len(ids) + more > self._llama.n_ctx():
            raise Refused("invalid", f"{len(ids) + more} tokens are over n_ctx {self._llama.n_ctx()}: start with --option n_ctx=N")

    def _logits(self, first: int, last: int) -> Any:
        """[last - first, V]: element i is what the model says after the token at position first + i."""
        return self._llama.scores[first:last, :]

    def sample(self, request: SampleRequest) -> list[Completion]:
        for prompt in request.prompts:
            self._check(prompt, request.max_new_tokens)
        completions = []
        for index, prompt in enumerate(request.prompts):
            self._llama.reset()
            self._llama.eval(prompt)
            after_prompt = np.array(self._logits(len(prompt) - 1, len(prompt))[0])
            for which in range(request.n):
                self._llama.n_tokens = len(prompt)  # what lies behind is dropped by the next eval
                rng = np.random.default_rng([request.seed, index, which])
                completions.append(self._continue(index, after_prompt, request, rng))
        return completions

    def _continue(self, index: int, logits: Any, request: SampleRequest, rng: np.random.Generator) -> Completion:
        raws: list[float] = []
        entropies: list[float] = []
        completion = Completion(index, [], [], "length", raws, entropies)
        while True:
            raw, drawn = log_softmax(logits), drawn_from(logits, request)
            token = draw(drawn, rng)
            completion.token_ids.append(token)
            completion.logprobs.append(float((raw if request.logprobs == "raw" else drawn)[token]))
            raws.append(float(raw[token]))
            entropies.append(float(entropy(drawn)))
            if token == self._end:
                completion.finish_reason = "stop"
                return completion
            if len(completion.token_ids) == request.max_new_tokens:
                return completion
            self._llama.eval([token])
            logits = self._logits(self._llama.n_tokens - 1, self._llama.n_tokens)[0]

    def score(self, request: ScoreRequest) -> list[RowScore]:
        scores = []
        for row in request.rows:
            self._check(row.token_ids, 0)
            self._llama.reset()
            self._llama.eval(row.token_ids)
            logits = self._logits(row.prompt_length - 1, len(row.token_ids) - 1)
            logprobs = log_softmax(logits / request.temperature)
            drawn = np.array(row.token_ids[row.prompt_length:])
            scores.append(RowScore(logprobs[np.arange(len(drawn)), drawn].tolist(), entropy(logprobs).tolist()))
        return scores


if __name__ == "__main__":
    sys.exit(run("llama_cpp", LlamaCppEngine))
