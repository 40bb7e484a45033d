#!/usr/bin/env python3
"""Samples tokens with transformers in several numerics and scores them in others, for tests/bench/healthy_records.py.

Every row is drawn by one engine (eager or sdpa attention, fp32 or bf16, with a cache) and scored, without a cache, by
four. Nothing is wrong in any of it, so what differs is what numbers alone do. Writes one .npz per group.

    OMP_NUM_THREADS=1 .deps/venv/bin/python tests/bench/healthy_pool.py --out /tmp/healthy [--model DIR] [--rows 64]
"""
import argparse
import pathlib

import numpy as np
import torch
import transformers

SOURCE = pathlib.Path(__file__).resolve().parents[2]
END = 2  # <|im_end|> of SmolLM2
ASKS = ["Tell me a short story about {}.", "What is {}? Explain it to a child.", "List three facts about {}.",
        "Write a poem about {}.", "Why do people like {}?", "How would you draw {}?"]
THINGS = ["the sea", "a clock", "bread", "winter", "the number seven", "a lost dog", "rain", "a train station", "chess",
          "the moon", "an old map", "honey", "music"]
# name: numerics of the engine that draws, temperature, top_p
GROUPS = {"fp32_t1": ("sdpa", "float32", 1.0, 1.0), "bf16_t1": ("sdpa", "bfloat16", 1.0, 1.0),
          "bf16_eager_t07": ("eager", "bfloat16", 0.7, 1.0), "fp32_t07": ("sdpa", "float32", 0.7, 1.0),
          "bf16_top_p": ("sdpa", "bfloat16", 1.0, 0.9), "fp32_top_p": ("eager", "float32", 1.0, 0.9)}
SCORERS = {"fp32_sdpa": ("sdpa", "float32"), "fp32_eager": ("eager", "float32"), "bf16_sdpa": ("sdpa", "bfloat16"),
           "bf16_eager": ("eager", "bfloat16")}


def load(model, attention, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation=attention,
                                                             dtype=getattr(torch, dtype)).eval()


def describe(logits, ids, temperature, top_p):
    """Log-probs and entropies of rows of logits: of the distribution at `temperature`, before and after the filter."""
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    sorted_logprobs, order = logprobs.sort(-1, descending=True)
    mass = sorted_logprobs.exp().cumsum(-1)
    kept = ((mass - sorted_logprobs.exp()) < top_p) if top_p < 1 else torch.ones_like(mass, dtype=torch.bool)
    filtered = torch.full_like(logprobs, float("-inf")).scatter(-1, order, sorted_logprobs.masked_fill(~kept, float("-inf")))
    filtered = filtered.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    ids = torch.multinomial(filtered.exp(), 1).squeeze(-1) if ids is None else ids
    take = lambda values: values.gather(-1, ids[..., None]).squeeze(-1)  # noqa: E731
    return ids, {"whole": take(logprobs), "filtered": take(filtered), "entropy": entropy,
                 "raw": take(torch.log_softmax(logits.float(), -1))}


@torch.no_grad()
def sample(model, prompt, rows, length, temperature, top_p):
    """[rows, length] ids, and what the engine says of each. Rows that ended are cut by the caller."""
    ids = torch.tensor([prompt] * rows)
    cache, columns = None, []
    for _ in range(length):
        done = model(ids, past_key_values=cache, use_cache=True)
        cache = done.past_key_values
        drawn, said = describe(done.logits[:, -1], None, temperature, top_p)
        columns.append({"ids": drawn, **said})
        ids = drawn[:, None]
    return {name: torch.stack([column[name] for column in columns], 1).numpy() for name in columns[0]}


@torch.no_grad()
def score(model, prompt, ids, temperature, top_p):
    whole = torch.cat([torch.tensor([prompt] * len(ids)), torch.tensor(ids)], 1)
    logits = model(whole, use_cache=False).logits[:, len(prompt) - 1:-1]
    parts = [describe(logits[i:i + 1], torch.tensor(ids[i:i + 1]), temperature, top_p)[1] for i in range(len(ids))]
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default=str(SOURCE / "models" / "smollm2-135m-instruct"))
    parser.add_argument("--rows", type=int, default=64, help="rows of a group, eight of a prompt")
    parser.add_argument("--length", type=int, default=110)
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
    scorers = {name: load(flags.model, *numerics) for name, numerics in SCORERS.items()}
    for place, (group, (attention, dtype, temperature, top_p)) in enumerate(GROUPS.items()):
        engine = load(flags.model, attention, dtype)
        found = {}
        for n in range(flags.rows // 8):
            ask = ASKS[n % len(ASKS)].format(THINGS[(n + place * 5) % len(THINGS)])
            prompt = tokenizer.apply_chat_template([{"role": "user", "content": ask}], add_generation_prompt=True)
            prompt = list(prompt["input_ids"] if hasattr(prompt, "keys") else prompt)
            drawn = sample(engine, prompt, 8, flags.length, temperature, top_p)
            said = {name: score(model, prompt, drawn["ids"], temperature, top_p) for name, model in scorers.items()}
            for i in range(8):
                ends = np.flatnonzero(drawn["ids"][i] == END)
                length = int(ends[0]) + 1 if len(ends) else flags.length
                row = f"{group}_{n}_{i}"
                found[f"{row}/prompt"] = np.array(prompt, np.int32)
                for name, values in drawn.items():
                    found[f"{row}/{name}"] = values[i, :length]
                for scorer, columns in said.items():
                    for name, values in columns.items():
                        found[f"{row}/{scorer}/{name}"] = values[i, :length]
            print(group, n, flush=True)
        np.savez(flags.out / f"{group}.npz", **found)


if __name__ == "__main__":
    main()
