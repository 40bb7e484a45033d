"""A server that speaks HTTP behind the protocol of docs/engines.md: vLLM's and every other /v1/completions that takes token
ids as the prompt and returns log-probs; SGLang's /generate; llama.cpp's /completion.

Options: url (required), server (vllm, sglang, llama_cpp; default vllm), name (the model at the server; default the first of
/v1/models), key_file (a file with a bearer token), timeout (seconds, default 600), logprobs (what the server was started to
return, processed or raw; default processed)."""
from __future__ import annotations

import json
import math
import pathlib
import sys
import urllib.error
import urllib.request
from typing import Any

from .protocol import Arguments, run
from .requests import Completion, Info, Refused, RowScore, SampleRequest, ScoreRequest

_SERVERS = ("vllm", "sglang", "llama_cpp")


class HttpEngine:
    def __init__(self, started: Arguments) -> None:
        started.allow("url", "server", "name", "key_file", "timeout", "logprobs")
        if "url" not in started.options:
            raise Refused("invalid", "--option url=http://HOST:PORT is needed")
        self._url = started.options["url"].rstrip("/")
        self._server = started.option("server", "vllm")
        if self._server not in _SERVERS:
            raise Refused("invalid", f"--option server: expected one of {', '.join(_SERVERS)}, found {self._server!r}")
        self._timeout = started.integer("timeout", 600)
        self._kind = started.option("logprobs", "processed")
        self._dtype = started.long_dtype()
        self._key = pathlib.Path(started.options["key_file"]).read_text(encoding="utf-8").strip() if "key_file" in started.options else ""
        self._name = started.option("name", "")
        if self._server == "vllm" and not self._name:
            self._name = str(self._call("/v1/models", None)["data"][0]["id"])

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        asked = urllib.request.Request(self._url + path, None if body is None else json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(asked, timeout=self._timeout) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")[:400]
            raise Refused("invalid" if error.code < 500 else "failed", f"{self._url}{path}: HTTP {error.code}: {said}") from None
        except OSError as error:
            raise Refused("failed", f"{self._url}{path} does not answer ({error}): start the server, or correct the URL") from None
        except ValueError as error:
            raise Refused("failed", f"{self._url}{path} answers with something that is not JSON: {error}") from None

    def info(self) -> Info:
        can = ["sample"] if self._server == "llama_cpp" else ["sample", "score"]
        return Info(self._server, "", self._dtype, can, {"url": self._url, "name": self._name})

    def sample(self, request: SampleRequest) -> list[Completion]:
        if request.logprobs != self._kind:
            raise Refused("unsupported", f"{request.logprobs} log-probs were asked for, and what this server returns is taken as "
                                         f"{self._kind}: ask for --logprobs {self._kind}, and start the server so that it returns these "
                                         f"(vLLM: --logprobs-mode {self._kind}_logprobs)")
        one = {"vllm": self._sample_vllm, "sglang": self._sample_sglang, "llama_cpp": self._sample_llama}[self._server]
        return [completion for index, prompt in enumerate(request.prompts) for completion in one(index, prompt, request)]

    def _sample_vllm(self, index: int, prompt: list[int], request: SampleRequest) -> list[Completion]:
        body: dict[str, Any] = {"model": self._name, "prompt": prompt, "n": request.n, "temperature": request.temperature,
                                "top_p": request.top_p, "max_tokens": request.max_new_tokens, "seed": request.seed + index, "logprobs": 0,
                                "return_token_ids": True}
        if request.top_k:
            body["top_k"] = request.top_k
        completions = []
        for choice in self._call("/v1/completions", body)["choices"]:
            if not choice.get("token_ids"):
                raise Refused("unsupported", f"{self._url}: the answer has no token_ids, so that its tokens cannot be scored")
            completions.append(Completion(index, choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]))
        return completions

    def _sample_sglang(self, index: int, prompt: list[int], request: SampleRequest) -> list[Completion]:
        params = {"n": 1, "temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k or -1,
                  "max_new_tokens": request.max_new_tokens}
        completions = []
        for _ in range(request.n):
            meta = self._call("/generate", {"input_ids": prompt, "sampling_params": params, "return_logprob": True})["meta_info"]
            pairs = meta["output_token_logprobs"]
            completions.append(Completion(index, [pair[1] for pair in pairs], [pair[0] for pair in pairs], meta["finish_reason"]["type"]))
        return completions

    def _sample_llama(self, index: int, prompt: list[int], request: SampleRequest) -> list[Completion]:
        """llama.cpp's probabilities are of the untouched logits unless post_sampling_probs is asked for, which has no log."""
        body = {"prompt": prompt, "temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p, "min_p": 0.0,
                "samplers": ["top_k", "top_p", "temperature"], "n_predict": request.max_new_tokens, "n_probs": 1, "return_tokens": True,
                "post_sampling_probs": self._kind == "processed", "cache_prompt": False}
        completions = []
        for which in range(request.n):
            reply = self._call("/completion", {**body, "seed": request.seed + index * request.n + which})
            values = []
            for place in reply["completion_probabilities"]:
                values.append(place["logprob"] if "logprob" in place else math.log(place["prob"]) if place["prob"] > 0 else -math.inf)
            ids = [place["id"] for place in reply["completion_probabilities"]]
            completions.append(Completion(index, ids, values, "length" if reply.get("stop_type") == "limit" else "stop"))
        return completions

    def score(self, request: ScoreRequest) -> list[RowScore]:
        if self._server == "llama_cpp":
            raise Refused("unsupported", "llama.cpp's server does not return log-probs of a prompt; the adapter llama_cpp scores")
        if request.temperature != 1:
            raise Refused("unsupported", f"{self._server} scores prompts at temperature 1 only")
        return [self._score(row.token_ids, row.prompt_length) for row in request.rows]

    def _score(self, ids: list[int], prompt_length: int) -> RowScore:
        if self._server == "sglang":
            meta = self._call("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                                            "return_logprob": True, "logprob_start_len": 0})["meta_info"]
            return RowScore([pair[0] for pair in meta["input_token_logprobs"][prompt_length:]])
        body = {"model": self._name, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        places = self._call("/v1/completions", body)["choices"][0].get("prompt_logprobs")
        if not places or len(places) != len(ids):
            raise Refused("unsupported", f"{self._url}: the answer has no prompt_logprobs")
        return RowScore([float(places[at][str(ids[at])]["logprob"]) for at in range(prompt_length, len(ids))])

    def load_weights(self, directory: str) -> None:
        raise Refused("unsupported", f"{self._url}: this adapter loads no weights into a server")


if __name__ == "__main__":
    sys.exit(run("openai_http", HttpEngine))
