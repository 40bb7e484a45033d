#!/usr/bin/env python3
"""Peer of `tandem bench train`: TRL's GRPOTrainer on the same prompts, group size, lengths and optimizer, on the CPU.

Runs each microbatch of --microbatches for a few steps in one process after the other and keeps the fastest. Prints one
JSON object: {"microbatch": .., "steps": [{"step_seconds": .., "generate_seconds": .., "train_seconds": ..,
"trained_tokens": ..}, ..], "peak_bytes": ..}; the first step of each run is not counted.

    trl.py --model DIR --dtype fp32|bf16 --threads N --data FILE --prompts 8 --group 8 --new-tokens 16 --steps 3
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

# transformers is a package, not the peer beside this file.
sys.path[:] = [entry for entry in sys.path if not entry.endswith("bench/peers")]


def flags():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--data", required=True, help="JSON lines with prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--microbatches", default="64,32,16,8", help="completions; those that divide the batch are tried")
    parser.add_argument("--only", type=int, default=0, help="run this microbatch here and print its steps")
    return parser.parse_args()


def run_one(args):
    import torch
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Timed(GRPOTrainer):
        generate_seconds = 0.0
        trained_tokens = 0

        def _generate(self, *arguments, **options):
            start = time.perf_counter()
            outputs = super()._generate(*arguments, **options)
            self.generate_seconds += time.perf_counter() - start
            return outputs

        def _generate_and_score_completions(self, inputs):
            outputs = super()._generate_and_score_completions(inputs)
            self.trained_tokens += int(outputs["completion_mask"].sum())
            return outputs

    class Clock(TrainerCallback):
        marks = []

        def mark(self):
            self.marks.append((time.perf_counter(), trainer.generate_seconds, trainer.trained_tokens))

        def on_step_begin(self, *_, **__):
            self.mark()

        def on_train_end(self, *_, **__):
            self.mark()

    def reward(completions, **_):
        return [float(bool(text) and text[-1] in "abcdefghijklm") for text in completions]

    batch = args.prompts * args.group
    rows = [{"prompt": json.loads(line)["prompt"]} for line in open(args.data, encoding="utf-8")]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=args.only, gradient_accumulation_steps=batch // args.only,
            num_generations=args.group, max_completion_length=args.new_tokens, temperature=1.0, learning_rate=1e-6,
            lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, beta=0.0,
            loss_type="dr_grpo", max_steps=args.steps + 1, bf16=args.dtype == "bf16", use_cpu=True, report_to=[],
            save_strategy="no", logging_strategy="no", gradient_checkpointing=False, seed=0, disable_tqdm=True)
        trainer = Timed(model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows),
                        processing_class=AutoTokenizer.from_pretrained(args.model), callbacks=[Clock()])
        trainer.train()
    steps = []
    for (t0, g0, n0), (t1, g1, n1) in list(zip(Clock.marks, Clock.marks[1:]))[1:]:
        steps.append({"step_seconds": t1 - t0, "generate_seconds": g1 - g0, "train_seconds": t1 - t0 - (g1 - g0),
                      "trained_tokens": n1 - n0})
    print(json.dumps({"microbatch": args.only, "steps": steps,
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def main():
    args = flags()
    if args.only:
        return run_one(args)
    batch = args.prompts * args.group
    results = []
    for microbatch in sorted({min(int(m), batch) for m in args.microbatches.split(",")}, reverse=True):
        if batch % microbatch or microbatch % args.group:
            continue
        done = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--only", str(microbatch)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:  # out of memory at a large microbatch is TRL's answer to it
            print(f"trl: microbatch {microbatch} ended with {done.returncode}: {done.stderr[-300:]}", file=sys.stderr)
            continue
        results.append(json.loads(done.stdout.splitlines()[-1]))
    if not results:
        sys.exit("trl: no microbatch ran")
    print(json.dumps(min(results, key=lambda r: statistics.median(s["step_seconds"] for s in r["steps"]))))


if __name__ == "__main__":
    main()
