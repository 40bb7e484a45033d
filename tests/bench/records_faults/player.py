"""Draws completions with an engine, scores them with either engine, and writes captures of format 3."""
from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import torch

from engine import Engine

END = 2  # <|im_end|>, the end token of the model

# Half of the prompts are chats, half are text without a template.
CHATS = [
    "Name three rivers of Europe and one city on each.",
    "Write a short poem about rain.",
    "What is 17 times 6? Explain the steps.",
    "Say hello in four languages.",
    "Is a tomato a fruit? Answer in one sentence.",
    "Give me a name for a grey cat.",
    "How do I boil an egg?",
]
TEXTS = [
    "The old lighthouse keeper opened the door and",
    "def fibonacci(n):\n    \"\"\"Return the n-th number.\"\"\"\n",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is the capital of Peru?\nA:",
    "1, 1, 2, 3, 5, 8,",
]


@dataclasses.dataclass
class Sampler:
    """The settings that draws follow; the defaults change nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0

    def claims(self) -> dict[str, float]:
        """Fields of a header's side: the temperature always, everything else where it is not the default."""
        changed = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        return {"temperature": self.temperature, **changed}

    def apply(self, logits: torch.Tensor, drawn: list[list[int]], prompts: list[list[int]]) -> torch.Tensor:
        """Logits of the distribution that is drawn from. One row of logits for each row of `drawn`."""
        out = logits.clone()
        for row, (tokens, prompt) in enumerate(zip(drawn, prompts)):
            if self.repetition_penalty != 1.0:
                seen = torch.tensor(sorted({*tokens, *prompt}))
                old = out[row, seen]
                out[row, seen] = torch.where(old > 0, old / self.repetition_penalty, old * self.repetition_penalty)
            if tokens and (self.frequency_penalty or self.presence_penalty):
                ids, counts = torch.tensor(tokens).unique(return_counts=True)
                out[row, ids] -= self.frequency_penalty * counts + self.presence_penalty
            if len(tokens) < self.min_tokens:
                out[row, END] = float("-inf")
        out = out / self.temperature
        if self.top_k:
            out = out.masked_fill(out < out.topk(self.top_k, -1).values[:, -1:], float("-inf"))
        if self.min_p:
            out = out.masked_fill(out < out.amax(-1, keepdim=True) + torch.log(torch.tensor(self.min_p)), float("-inf"))
        if self.top_p < 1.0:
            ordered, ids = out.softmax(-1).sort(-1, descending=True)
            beyond = ordered.cumsum(-1) - ordered >= self.top_p
            out = out.masked_fill(torch.zeros_like(beyond).scatter(-1, ids, beyond), float("-inf"))
        return out


def entropy_of(log_probs: torch.Tensor) -> torch.Tensor:
    return -(log_probs.exp() * log_probs.clamp_min(-1e4)).sum(-1)


def prompts(tokenizer: Any) -> list[list[int]]:
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
             for text in CHATS]
    return chats + [[1] + tokenizer.encode(text) for text in TEXTS]


@torch.no_grad()
def draw(engine: Engine, contexts: list[list[int]], copies: int, length: int, sampler: Sampler, seed: int) -> list[dict]:
    """`copies` completions of every context: tokens, and log-probs before and after the sampler's settings."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([len(context) for context in contexts])
    longest = int(lengths.max())
    padded = torch.tensor([context + [0] * (longest - len(context)) for context in contexts])
    cache = engine.new_cache(len(contexts), longest + length)
    places = torch.arange(longest).expand(len(contexts), -1)
    last = engine.hidden(padded, places, lengths, cache, longest)[torch.arange(len(contexts)), lengths - 1]
    last, lengths = last.repeat_interleave(copies, 0), lengths.repeat_interleave(copies)
    cache = [(k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0)) for k, v in cache]
    rows = [{"prompt": context, "tokens": [], "raw": [], "processed": [], "raw_entropy": [], "entropy": [], "group": group}
            for group, context in enumerate(contexts) for _ in range(copies)]
    live = list(range(len(rows)))
    for step in range(length):
        logits = engine.logits(last)
        changed = sampler.apply(logits, [rows[r]["tokens"] for r in live], [rows[r]["prompt"] for r in live])
        raw, log_probs = engine.log_softmax(logits), engine.log_softmax(changed)
        picked = torch.multinomial(changed.softmax(-1), 1, generator=generator)
        columns = (raw.gather(1, picked)[:, 0].tolist(), log_probs.gather(1, picked)[:, 0].tolist(),
                   entropy_of(raw).tolist(), entropy_of(log_probs).tolist())
        for r, token, *values in zip(live, picked[:, 0].tolist(), *columns):
            rows[r]["tokens"].append(token)
            for name, value in zip(("raw", "processed", "raw_entropy", "entropy"), values):
                rows[r][name].append(value)
        # Rows that have ended leave the batch.
        keep = torch.tensor([i for i, r in enumerate(live) if rows[r]["tokens"][-1] != END], dtype=torch.long)
        if step == length - 1 or not len(keep):
            break
        if len(keep) < len(live):
            live, lengths, picked = [live[i] for i in keep.tolist()], lengths[keep], picked[keep]
            cache = [(k[keep], v[keep]) for k, v in cache]
        at = (lengths + step)[:, None]
        last = engine.hidden(picked, at, lengths, cache, int(at.max()) + 1)[:, 0]
    for row in rows:
        row["finish"] = "stop" if row["tokens"][-1] == END else "length"
    return rows


@torch.no_grad()
def score(model: Any, rows: list[dict], readings: list[tuple[Any, Sampler]], contexts: list[list[int]] | None = None) -> list[dict[str, list]]:
    """Log-probs and entropies of drawn tokens by an `Engine` or a transformers model.

    One pass through the layers serves several readings: a head (an `Engine` or the model) and the settings that
    process its logits. `contexts` are what the scorer sees before the completion, where that is not the prompt.
    """
    contexts = contexts or [row["prompt"] for row in rows]
    out: list[dict[str, list]] = [{"values": [[] for _ in rows], "entropy": [[] for _ in rows]} for _ in readings]
    order = sorted(range(len(rows)), key=lambda r: len(contexts[r]) + len(rows[r]["tokens"]))
    for start in range(0, len(order), 7):
        chosen = order[start:start + 7]
        full = [contexts[r] + rows[r]["tokens"] for r in chosen]
        longest = max(map(len, full))
        # Padding on the right: under a causal mask no token sees it.
        tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids in full])
        lengths = torch.tensor([len(contexts[r]) for r in chosen])
        if isinstance(model, Engine):
            places = torch.arange(longest).expand(len(chosen), -1)
            hidden = model.hidden(tokens, places, lengths, model.new_cache(len(chosen), longest), longest)
        else:
            hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        for i, r in enumerate(chosen):
            drawn = rows[r]["tokens"]
            before = [drawn[:t] for t in range(len(drawn))]
            wanted = hidden[i, len(contexts[r]) - 1:len(full[i]) - 1]
            for reading, (head, sampler) in zip(out, readings):
                logits = head.logits(wanted) if isinstance(head, Engine) else head.lm_head(wanted).float()
                logits = sampler.apply(logits, before, [rows[r]["prompt"]] * len(drawn))
                log_probs = head.log_softmax(logits) if isinstance(head, Engine) else torch.log_softmax(logits, -1)
                reading["values"][r] = log_probs.gather(1, torch.tensor(drawn)[:, None])[:, 0].tolist()
                reading["entropy"][r] = entropy_of(log_probs).tolist()
    return out


def json_number(value: Any) -> Any:
    """Numbers that JSON does not have become the texts of docs/records.md."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def write_case(directory: pathlib.Path, truth: dict, header: dict, rows: list[dict]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "records.jsonl", "w", encoding="utf-8") as file:
        for line in [{"tandem_capture": 3, **header}, *rows]:
            clean = {name: [json_number(v) for v in value] if isinstance(value, list) else value for name, value in line.items()}
            print(json.dumps(clean, allow_nan=False), file=file)
    (directory / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
