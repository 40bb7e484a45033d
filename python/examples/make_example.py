"""Writes example.jsonl, which the notebook reads: 24 rows of made-up log-probs, drawn at temperature 0.9 and recorded as if
at 1, with noise of bfloat16's size on the trainer's side. No engine was run for it.

    python python/examples/make_example.py
"""
import pathlib

import numpy as np

import tandem_rl

VOCABULARY, TEMPERATURE, PROMPT = 64, 0.9, 6


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def rows():
    rng = np.random.default_rng(11)
    for number in range(24):
        length = int(rng.integers(20, 60))
        ids = rng.integers(3, VOCABULARY, PROMPT).tolist()
        behaviour, proximal, entropy = ([None] * PROMPT for _ in range(3))
        for _ in range(length):
            logits = rng.standard_normal(VOCABULARY) * rng.uniform(1, 4)
            drawn_from, scored = log_softmax(logits / TEMPERATURE), log_softmax(logits)
            token = int(rng.choice(VOCABULARY, p=np.exp(drawn_from)))
            ids.append(token)
            behaviour.append(round(float(drawn_from[token]), 5))
            proximal.append(round(min(float(scored[token] + 2**-9 * rng.standard_normal()), 0.0), 5))
            entropy.append(round(float(-(np.exp(scored) * scored).sum()), 5))
        yield {"token_ids": ids, "prompt_length": PROMPT, "behaviour_logprobs": behaviour, "proximal_logprobs": proximal,
               "proximal_entropy": entropy, "weight_version": number // 8, "group_id": number // 4, "finish_reason": "length"}


if __name__ == "__main__":
    origin = {"from": "made by make_example.py", "transform": "none", "digits": "decimal:5"}
    header = {"created_by": "make_example.py", "vocab_size": VOCABULARY,
              "behaviour": {"logprobs": "processed", "temperature": 1.0}, "proximal": {"policy": "proximal", "temperature": 1.0},
              "columns": {"behaviour_logprobs": origin, "proximal_logprobs": origin, "proximal_entropy": origin}}
    tandem_rl.write_records(pathlib.Path(__file__).with_name("example.jsonl"), header, rows())
