#!/usr/bin/env python3
"""One GRPO train step of the demo in TRL, for the comparison with a Tandem run on the same work.

Same model, prompts, group size, lengths and optimizer as examples/demo.yaml. Prints one JSON object with the
seconds of each step after the first. `--tandem RUN` adds the step times of a finished Tandem run and
the ratio; make the run directly before, on the same machine, with the same dtype on both of its sides
(`--set server.engine.dtype=fp32`, or `--set trainer.dtype=bf16`).

    .deps/venv/bin/python tests/bench/training/trl_step_bench.py [--dtype fp32] [--steps 4] [--tandem runs/demo] [--lora-rank 8]

With --lora-rank TRL trains adapters of PEFT on all linear layers; the Tandem run then has trainer.lora.rank.
"""
import argparse
import json
import pathlib
import statistics
import tempfile
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent


def demo_rows():
    return [{"prompt": [{"role": "user", "content": f"What is {a} * {b}? Answer with just the number."}],
             "answer": str(a * b)} for a in range(1, 10) for b in range(1, 10)]


def reward(completions, answer, **_):
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer)]


def tandem_steps(run):
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    return [s["time/rollout"] + s.get("time/update", 0) + s.get("time/proximal", 0)
            + s.get("time/push", 0) + s.get("time/pack", 0) for s in steps if s.get("time/rollout")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(HERE.parents[2] / "models" / "smollm2-135m-instruct"))
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tandem", type=pathlib.Path)
    parser.add_argument("--lora-rank", type=int, default=0)
    args = parser.parse_args()

    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        marks = []

        def on_step_begin(self, *_, **__):
            self.marks.append(time.perf_counter())

        def on_train_end(self, *_, **__):
            self.marks.append(time.perf_counter())

    adapters = None
    if args.lora_rank:
        from peft import LoraConfig
        adapters = LoraConfig(r=args.lora_rank, lora_alpha=4 * args.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=64, num_generations=8,
            max_completion_length=16, temperature=1.0, learning_rate=1e-5, lr_scheduler_type="constant",
            warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, beta=0.0, loss_type="dr_grpo",
            max_steps=args.steps, bf16=args.dtype == "bf16", use_cpu=True, report_to=[], save_strategy="no",
            logging_strategy="no", gradient_checkpointing=False, seed=0)
        trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config,
                              train_dataset=Dataset.from_list(demo_rows()),
                              processing_class=tokenizer, callbacks=[Clock()], peft_config=adapters)
        trainer.train()
    times = [b - a for a, b in zip(Clock.marks, Clock.marks[1:])][1:]
    result = {"benchmark": "grpo_step", "dtype": args.dtype, "lora_rank": args.lora_rank,
              "trl_seconds": {"median": round(statistics.median(times), 2),
                              "min": round(min(times), 2), "max": round(max(times), 2)}}
    if args.tandem:
        ours = tandem_steps(args.tandem)[1:]
        result["tandem_seconds"] = {"median": round(statistics.median(ours), 2),
                                    "min": round(min(ours), 2), "max": round(max(ours), 2)}
        result["ratio"] = round(statistics.median(times) / statistics.median(ours), 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
