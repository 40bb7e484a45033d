#!/usr/bin/env python3
"""transformers' generate on the cases of `tandem bench rollout` (README.md here)."""
import argparse
import json
import sys
import time


def main():
    # This file has the name of the package it measures.
    sys.path[:] = [entry for entry in sys.path if not entry.endswith("bench/peers")]
    import torch
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cases", required=True, type=json.loads)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[args.dtype]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval().to(args.device)
    if args.compile:
        model.forward = torch.compile(model.forward, dynamic=True)

    def seconds(batch, prompt_tokens, new_tokens):
        ids = torch.randint(100, model.config.vocab_size - 100, (batch, prompt_tokens), device=args.device)
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0,
                                 top_k=0, top_p=1.0, min_new_tokens=new_tokens, max_new_tokens=new_tokens,
                                 pad_token_id=0)
        out = out.cpu()  # waits for a device
        assert out.shape[1] == prompt_tokens + new_tokens
        return time.perf_counter() - start

    seconds(1, 16, 4)  # warm up
    results = {}
    for case in args.cases:
        batch, prompt, new = case["batch"], case["prompt_tokens"], case["new_tokens"]
        prefill = seconds(batch, prompt, 1)
        whole = seconds(batch, prompt, new) if new > 1 else prefill
        results[case["name"]] = {"prefill_seconds": prefill, "decode_seconds": whole - prefill}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
