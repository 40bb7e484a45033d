#!/usr/bin/env python3
"""What a capture costs a step: the same run of the pair without captures, with captures of tokens only, and with
the fp32 weights that attribution needs.

The runs take turns, so that noise of the machine falls on all of them. Prints one JSON object: seconds of
`time/capture` and its share of the step's other work (median, min, max over steps after the first), seconds of a step, and
megabytes on disk a capture.

    .deps/venv/bin/python tests/bench/capture_bench.py [--model DIR] [--steps 5] [--repeats 2]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TANDEM = SOURCE / "build" / "release" / "bin" / "tandem"
VARIANTS = {"none": {}, "tokens": {"every": 1, "weights": False}, "weights": {"every": 1}}


def write_config(folder, model, steps, capture):
    """A run of `steps` steps of 8 x 8 completions of 32 tokens, as the demo's in size."""
    prompts = folder / "train.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"What is {i} times {i + 3}?", "answer": str(i * (i + 3))}) + "\n"
                               for i in range(64)), encoding="utf-8")
    config = {
        "launch": {"num_servers": 1},
        "server": {"model": str(model), "engine": {"dtype": "bf16"}},
        "trainer": {
            "run": {"out": str(folder), "name": "run"}, "model": str(model), "seed": 1, "steps": steps,
            "prompts_per_step": 8, "completions_per_prompt": 8, "sampling": {"temperature": 1, "max_new_tokens": 32},
            "data": {"train": str(prompts)}, "reward": {"weights": {"format": 1}, "format": "(?s).*[aeiou].*[0-9].*"},
            "optimizer": {"learning_rate": 1e-6}, "capture": capture}}
    path = folder / "run.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return path


def megabytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def measure(model, steps, capture):
    """The step lines of one run without its first step, and megabytes a capture."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([str(TANDEM), "run", str(write_config(folder, model, steps, capture))], check=True,
                       capture_output=True, timeout=1800)
        lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        written = folder / "run" / "captures"
        return [line for line in lines if "loss/total" in line][1:], \
            megabytes(written) / steps if written.is_dir() else 0


def summary(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=SOURCE / "models" / "smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()

    found = {name: ([], 0) for name in VARIANTS}
    for _ in range(args.repeats):
        for name, capture in VARIANTS.items():
            lines, size = measure(args.model, args.steps, capture)
            found[name] = (found[name][0] + lines, size)
    result = {"benchmark": "capture", "model": args.model.name}
    for name, (lines, size) in found.items():
        result[name] = {"step_s": summary([line["time/step"] for line in lines])}
        if name == "none":
            continue
        seconds = [line["time/capture"] for line in lines]
        result[name] |= {
            "capture_s": summary(seconds),
            "share_of_other_work": summary([s / (line["time/step"] - s) for s, line in zip(seconds, lines)]),
            "megabytes": round(size, 2)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
