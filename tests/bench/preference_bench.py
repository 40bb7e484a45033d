#!/usr/bin/env python3
"""Times DPO updates of `tandem train-preferences` and of TRL's DPOTrainer side by side: the same pairs, order, batch and AdamW.

    python preference_bench.py --tandem build/release/bin/tandem --model models/smollm2-135m-instruct [--dtypes fp32,bf16]
        [--threads 2] [--pairs 12] [--batch 4]

Both sides compute the reference log-probs before they train, and the first update is left out, so a number is that of passes,
loss and optimizer. TRL's bf16 is autocast over fp32 parameters, ours casts the matrices once per update; both have fp32 masters.
Prints one JSON line for each dtype: seconds per update of both, tokens per second, and the losses, which should agree.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time


def make_pairs(count):
    rng = random.Random(1)
    words = pathlib.Path(__file__).read_text(encoding="utf-8").split()

    def text(least, most):
        return " ".join(rng.choice(words) for _ in range(rng.randint(least, most)))
    return [{"prompt": [{"role": "user", "content": text(10, 40)}], "chosen": [{"role": "assistant", "content": text(10, 50)}],
             "rejected": [{"role": "assistant", "content": text(10, 50)}]} for _ in range(count)]


def time_tandem(args, pairs, dtype, folder):
    data, out = folder / "pairs.jsonl", folder / f"tandem_{dtype}"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    subprocess.run([args.tandem, "train-preferences", "--loss", "dpo", "--model", args.model, "--data", data, "--out", out, "--shuffle",
                    "false", "--batch", str(args.batch), "--lr", "1e-6", "--decay", "constant", "--warmup", "0", "--dtype", dtype,
                    "--threads", str(args.threads)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = (lines[-1]["time_s"] - lines[0]["time_s"]) / (len(lines) - 1)
    tokens = sum(line["num_tokens"] for line in lines[1:]) / (len(lines) - 1)
    return seconds, tokens, [line["loss"] for line in lines]


def time_trl(args, pairs, dtype, folder):
    import torch
    import transformers
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer
    torch.set_num_threads(args.threads)
    ends, losses = [], []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            ends.append(time.monotonic())

    class Recording(DPOTrainer):
        def training_step(self, *values, **more):
            loss = super().training_step(*values, **more)
            losses.append(float(loss))
            return loss

    config = DPOConfig(output_dir=str(folder / "trl"), per_device_train_batch_size=args.batch, num_train_epochs=1, learning_rate=1e-6,
                       lr_scheduler_type="constant", max_grad_norm=1.0, beta=0.1, max_length=None, precompute_ref_log_probs=True,
                       gradient_checkpointing=False, bf16=dtype == "bf16", use_cpu=True, report_to="none", save_strategy="no",
                       train_sampling_strategy="sequential", disable_tqdm=True, logging_strategy="no")
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    Recording(model=model, args=config, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer, callbacks=[Clock()]).train()
    return (ends[-1] - ends[0]) / (len(ends) - 1), losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tandem", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    pairs = make_pairs(args.pairs)
    for dtype in args.dtypes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            ours, tokens, our_losses = time_tandem(args, pairs, dtype, pathlib.Path(folder))
            theirs, their_losses = time_trl(args, pairs, dtype, pathlib.Path(folder))
        print(json.dumps({"dtype": dtype, "tandem_s": round(ours, 3), "trl_s": round(theirs, 3), "tandem_tokens_per_s": round(tokens / ours),
                          "times_as_fast": round(theirs / ours, 2), "tandem_losses": our_losses, "trl_losses": their_losses}), flush=True)


if __name__ == "__main__":
    main()
