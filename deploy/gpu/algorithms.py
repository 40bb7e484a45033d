#!/usr/bin/env python3
"""Runs the supervised trainers on the CPU and on a device, and PPO with a critic with both engines on the device.

    algorithms.py BIN MODEL OUT [--device cuda]

Prints a table: the largest difference of a loss between the two, relative to the loss, and what PPO reports.
Exit code 1: a command failed, a number is not finite, or losses differ by more than 1e-3 of their size.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import subprocess
import sys

UPDATES = 6
COMMANDS = {
    "sft": ["sft", "--data", "answers.jsonl"],
    "dpo": ["train-preferences", "--loss", "dpo", "--data", "pairs.jsonl"],
    "orpo": ["train-preferences", "--loss", "orpo", "--data", "pairs.jsonl"],
    "kto": ["train-preferences", "--loss", "kto", "--data", "labels.jsonl"],
    "reward model": ["train-reward-model", "--data", "pairs.jsonl", "--held-out", "0.1"],
    "two heads": ["train-reward-model", "--data", "pairs.jsonl", "--held-out", "0.1", "--heads", "2"],
    "process reward model": ["train-reward-model", "--process", "--data", "steps.jsonl", "--held-out", "0.1"],
}

PPO = """
server:
  engine: {{device: {device}, dtype: bf16, kv_capacity_tokens: 8192}}
trainer:
  device: {device}
  dtype: bf16
  preset: ppo
  model: {model}
  steps: 4
  prompts_per_step: 8
  completions_per_prompt: 4
  sampling: {{temperature: 1, max_new_tokens: 16}}
  data: {{train: {out}/questions.jsonl}}
  reward: {{format: "(?s).*[a-m]{{3}}.*", weights: {{format: 1}}}}  # random text has it sometimes
  critic: {{warmup_steps: 1, optimizer: {{learning_rate: 1e-5}}}}
  optimizer: {{learning_rate: 1e-6}}
  eval: {{every: 0}}
  probe: {{every: 0}}
  checkpoint: {{every: 2}}
  run: {{out: {out}/ppo}}
"""


def write_data(out):
    draw = random.Random(1)
    files = {name: [] for name in ("answers", "pairs", "labels", "steps", "questions")}
    for _ in range(64):
        a, b = draw.randint(2, 99), draw.randint(2, 99)
        prompt, right, wrong = f"What is {a} + {b}?", str(a + b), str(a + b + draw.randint(1, 9))
        files["answers"].append({"prompt": prompt, "answer": right})
        files["pairs"].append({"prompt": prompt, "chosen": right, "rejected": wrong})
        files["labels"].append({"prompt": prompt, "completion": draw.choice([right, wrong]), "label": draw.random() < 0.5})
        files["steps"].append({"prompt": prompt, "steps": [f"{a} + {b}\\n", f"= {wrong}\\n"], "labels": [1, 0]})
        files["questions"].append({"messages": [{"role": "user", "content": prompt}], "answer": right})
    for name, rows in files.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(words, log):
    with open(log, "w", encoding="utf-8") as file:
        code = subprocess.run([str(word) for word in words], stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        print(f"{words[1]} failed ({code}):\n" + "\n".join(pathlib.Path(log).read_text().splitlines()[-8:]))
    return code == 0


def numbers(path, key):
    return [line[key] for line in map(json.loads, path.read_text().splitlines()) if key in line]


def compare(args, name, words):
    """The losses of both devices, or None."""
    losses = []
    for place, device in (("here", "cpu"), ("there", args.device)):
        out = args.out / f"{name.replace(' ', '_')}-{place}"
        words_of = [args.bin / "tandem", words[0], "--model", args.model, *words[1:], "--out", out, "--batch", 16,
                    "--max-updates", UPDATES, "--epochs", 4, "--warmup", 1, "--lr", "1e-3", "--threads", 2, "--device", device]
        words_of = [args.out / word if str(word).endswith(".jsonl") else word for word in words_of]
        if not run(words_of, args.out / f"{out.name}.log"):
            return None
        losses.append(numbers(out / "metrics.jsonl", "loss"))
    return losses


def run_ppo(args):
    """Some metrics of each step, none if the run failed."""
    out = args.out.resolve()
    (out / "ppo.yaml").write_text(PPO.format(device=args.device, model=args.model.resolve(), out=out))
    if not run([args.bin / "tandem", "run", out / "ppo.yaml"], out / "ppo.log"):
        return {}
    keys = ("reward/mean", "critic/loss", "critic/value_mean", "drift/k3", "loss/ratio_mean", "time/update")
    return {key: numbers(out / "ppo" / "run" / "metrics.jsonl", key) for key in keys}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write_data(args.out)
    print("| what | first and last loss, CPU | largest relative difference |\n|---|---|---|")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # each has few threads
        ppo = pool.submit(run_ppo, args)
        failed = False
        for name, losses in zip(COMMANDS, pool.map(lambda item: compare(args, *item), COMMANDS.items())):
            if losses is None:
                failed = True
                continue
            on_cpu, there = losses
            worst = max(abs(a - b) / abs(a) for a, b in zip(on_cpu, there, strict=True))
            failed |= not (len(on_cpu) == UPDATES and worst <= 1e-3)
            print(f"| {name} | {on_cpu[0]:.6f}, {on_cpu[-1]:.6f} | {worst:.1e} |", flush=True)
    print(f"\nPPO with a critic, both engines on {args.device}:")
    shown = ppo.result()
    failed |= not shown
    for key, values in shown.items():
        failed |= not (values and all(map(math.isfinite, values)))
        print(f"* {key}: " + ", ".join(f"{value:.4g}" for value in values))
    sys.exit(failed)


if __name__ == "__main__":
    main()
