#!/usr/bin/env python3
"""Rollout throughput over gRPC beside `transformers` generate, interleaved in one run.

Workload: B prompts of 64 tokens, 128 new tokens each, end token ignored, temperature 1, log-probs on
(Tandem's always are). Both sides warm up once, then run in turn. Prints one JSON object:
tokens/s of each (median, min, max over repeats), the ratio, and Tandem's fraction of the machine's
measured GEMM peak.

    .deps/venv/bin/python tests/bench/rollout_bench.py [--model DIR] [--batch 32] [--dtype bf16]
"""
import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support" / "python")]
import machine_limits  # noqa: E402
import rollout_client  # noqa: E402


def tandem_run(rollout, stub, prompts, new_tokens, round_number):
    """Seconds for all prompts, each a group of one."""

    def one(i):
        request = rollout.GenerateGroupRequest(
            group_id=round_number * 10_000 + i, prompt_token_ids=prompts[i], num_completions=1,
            sampling=rollout.SamplingParams(temperature=1, max_new_tokens=new_tokens, seed=i,
                                            ignore_eos=True))
        return sum(len(r.completion.token_ids) for r in stub.GenerateGroup(request, timeout=600)
                   if r.HasField("completion"))

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        counts = list(pool.map(one, range(len(prompts))))
    seconds = time.perf_counter() - start
    assert counts == [new_tokens] * len(prompts), counts
    return seconds


def transformers_run(model, prompts, new_tokens):
    ids = torch.tensor(prompts)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0,
                             top_k=0, top_p=1.0, min_new_tokens=new_tokens, max_new_tokens=new_tokens,
                             pad_token_id=0)
    seconds = time.perf_counter() - start
    assert out.shape[1] == ids.shape[1] + new_tokens
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path,
                        default=HERE.parents[1] / "models" / "smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    from transformers import AutoModelForCausalLM

    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[args.dtype]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(100, 40_000, (args.batch, args.prompt_tokens), generator=generator).tolist()
    rollout, rollout_grpc, _, _ = rollout_client.load_stubs()
    ours, theirs = [], []
    with rollout_client.Server(args.model, "--dtype", args.dtype) as server:
        stub = rollout_grpc.RolloutServiceStub(server.channel)
        tandem_run(rollout, stub, prompts, 16, 0)
        transformers_run(model, prompts, 16)
        for i in range(1, args.repeats + 1):
            ours.append(tandem_run(rollout, stub, prompts, args.new_tokens, i))
            theirs.append(transformers_run(model, prompts, args.new_tokens))
    tokens = args.batch * args.new_tokens
    parameters = sum(p.numel() for p in model.parameters())
    flops = machine_limits.gemm_flops(dtype)

    def rates(seconds):
        values = [tokens / s for s in seconds]
        return {"median": round(statistics.median(values), 1), "min": round(min(values), 1),
                "max": round(max(values), 1)}

    mine, peer = rates(ours), rates(theirs)
    print(json.dumps({
        "benchmark": "rollout", "batch": args.batch, "dtype": args.dtype,
        "tandem_tokens_per_s": mine, "transformers_tokens_per_s": peer,
        "ratio": round(mine["median"] / peer["median"], 2),
        "gemm_peak_gflops": round(flops / 1e9, 1),
        "fraction_of_gemm_peak": round(mine["median"] * 2 * parameters / flops, 3)}))


if __name__ == "__main__":
    main()
