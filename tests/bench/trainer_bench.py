#!/usr/bin/env python3
"""Forward and backward of the trainer's policy beside transformers, same tokens, unpacked, same dtype.

    python tests/bench/trainer_bench.py [--model DIR] [--dtypes fp32,bf16] [--sequences 8] [--tokens 64]

Prints one JSON line per dtype: tokens per second of both and their ratio, interleaved, best of the
repeats after a warm-up. transformers runs eagerly, as one batch of equal lengths, so nothing is padded.
"""
import argparse
import json
import os
import pathlib
import subprocess
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build" / "release" / "bin"))


def ids_of(sequences, tokens, vocabulary):
    return torch.tensor([[(i * 7919 + t * 104729 + 17) % vocabulary for t in range(tokens)]
                         for i in range(sequences)])


def transformers_seconds(model, ids, repeats):
    best = float("inf")
    for i in range(repeats + 1):
        start = time.perf_counter()
        logits = model(ids, use_cache=False).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])
        logprobs.sum().backward()
        if i > 0:
            best = min(best, time.perf_counter() - start)
        model.zero_grad(set_to_none=False)
    return best


def tandem_run(model, dtype, sequences, tokens, repeats):
    out = subprocess.run([BINARIES / "trainer_bench", model, dtype, str(sequences), str(tokens),
                          str(repeats)], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2-135m-instruct"))
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="both sides in turn, this many times")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    for name in args.dtypes.split(","):
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
        ids = ids_of(args.sequences, args.tokens, model.config.vocab_size)
        theirs, ours = float("inf"), float("inf")
        for _ in range(args.rounds):
            theirs = min(theirs, transformers_seconds(model, ids, args.repeats))
            ours = min(ours, tandem_run(args.model, name, args.sequences, args.tokens,
                                        args.repeats)["total_s"])
        tokens = args.sequences * args.tokens
        print(json.dumps({"dtype": name, "tokens": tokens,
                          "tandem_tokens_per_s": round(tokens / ours, 1),
                          "transformers_tokens_per_s": round(tokens / theirs, 1),
                          "speedup": round(theirs / ours, 2)}), flush=True)


if __name__ == "__main__":
    main()
