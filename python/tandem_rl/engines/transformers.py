"""transformers behind the protocol of docs/engines.md. Tokens are drawn by a loop of its own, so that the recorded
log-prob is that of the distribution which the token was drawn from.

Options: attn (eager or sdpa; default sdpa), threads."""
from __future__ import annotations

import sys
from typing import Any

from .protocol import Arguments, run
from .requests import Completion, Info, Refused, RowScore, SampleRequest, ScoreRequest


class TransformersEngine:
    """Completions of one prompt are one batch, and rows are scored one by one, so that nothing is ever padded."""

    def __init__(self, started: Arguments) -> None:
        import torch
        import transformers
        started.allow("attn", "threads")
        if "threads" in started.options:
            torch.set_num_threads(started.integer("threads", 1))
        self._torch: Any = torch
        self._dtype = started.long_dtype() or "bfloat16"
        self._attn = started.option("attn", "sdpa")
        self._version = transformers.__version__
        self._model: Any = None
        self.load_weights(started.model)

    def load_weights(self, directory: str) -> None:
        import transformers
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(self._torch, self._dtype), attn_implementation=self._attn)
        self._model.eval()
        generation = getattr(self._model, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None)
        if ends is None:
            ends = self._model.config.eos_token_id
        self._ends = {ends} if isinstance(ends, int) else set(ends or [])
        self._vocab = int(self._model.config.vocab_size)
        self._context = int(getattr(self._model.config, "max_position_embeddings", 1 << 30))

    def info(self) -> Info:
        return Info("transformers", self._version, self._dtype, ["sample", "score", "load_weights"],
                    {"attention": self._attn, "torch": str(self._torch.__version__)})

    def _check(self, ids: list[int], more: int) -> None:
        if max(ids) >= self._vocab:
            raise Refused("invalid", f"token id {max(ids)} is outside the vocabulary of {self._vocab}")
        if len(ids) + more > self._context:
            raise Refused("invalid", f"{len(ids) + more} tokens are over the model's context of {self._context}")

    def sample(self, request: SampleRequest) -> list[Completion]:
        for prompt in request.prompts:
            self._check(prompt, request.max_new_tokens)
        completions = []
        with self._torch.inference_mode():
            for index, prompt in enumerate(request.prompts):
                completions += self._sample_one(index, prompt, request)
        return completions

    def _sample_one(self, index: int, prompt: list[int], request: SampleRequest) -> list[Completion]:
        torch = self._torch
        generator = torch.Generator().manual_seed((request.seed * 1000003 + index) % (1 << 63))
        group = [Completion(index, [], [], "length", [], []) for _ in range(request.n)]
        ids = torch.tensor([prompt] * request.n)
        cache = None
        for _ in range(request.max_new_tokens):
            out = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            logits = out.logits[:, -1].float()
            raw = torch.log_softmax(logits, dim=-1)
            drawn_from = self._filtered(logits / request.temperature, request)
            probs = drawn_from.exp()
            ids = torch.multinomial(probs, 1, generator=generator)
            entropies = -(probs * drawn_from.clamp(min=-1e30)).sum(-1)
            for row, completion in enumerate(group):
                if completion.finish_reason == "stop":
                    continue
                token = int(ids[row, 0])
                completion.token_ids.append(token)
                source = raw if request.logprobs == "raw" else drawn_from
                completion.logprobs.append(float(source[row, token]))
                assert completion.raw_logprobs is not None and completion.entropies is not None
                completion.raw_logprobs.append(float(raw[row, token]))
                completion.entropies.append(float(entropies[row]))
                if token in self._ends:
                    completion.finish_reason = "stop"
            if all(completion.finish_reason == "stop" for completion in group):
                break
        return group

    def _filtered(self, logits: Any, request: SampleRequest) -> Any:
        """Log-probs after top-k and then top-p, renormalised; -inf for what they remove."""
        torch = self._torch
        if 0 < request.top_k < logits.shape[-1]:
            least = logits.topk(request.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if request.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            before = torch.softmax(ordered, dim=-1).cumsum(-1).roll(1, dims=-1)
            before[:, 0] = 0
            removed = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= request.top_p)
            logits = logits.masked_fill(removed, float("-inf"))
        return torch.log_softmax(logits, dim=-1)

    def score(self, request: ScoreRequest) -> list[RowScore]:
        torch = self._torch
        scores = []
        with torch.inference_mode():
            for row in request.rows:
                self._check(row.token_ids, 0)
                ids = torch.tensor([row.token_ids])
                logits = self._model(input_ids=ids, use_cache=False).logits[0, row.prompt_length - 1:-1].float()
                logprobs = torch.log_softmax(logits / request.temperature, dim=-1)
                entropies = -(logprobs.exp() * logprobs).sum(-1)
                drawn = ids[0, row.prompt_length:, None]
                scores.append(RowScore(logprobs.gather(-1, drawn)[:, 0].tolist(), entropies.tolist()))
        return scores


if __name__ == "__main__":
    sys.exit(run("transformers", TransformersEngine))
