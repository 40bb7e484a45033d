#!/usr/bin/env python3
"""What the prefix cache saves `tandem label-steps`: prompt tokens computed, wall and CPU time, with it and without, on the same lines.

    python label_steps_bench.py --tandem build/release/bin/tandem --model models/smollm2-135m-instruct [--lines 4] [--steps 10]
        [--continuations 4] [--max-new-tokens 16] [--repeats 2]

Completions are sums of many terms, a line a step. Both ways have the same seed and settings; they alternate, each in a server of
its own. Prints one JSON object: of each way the counts of the last run and the seconds of all, and the ratios of medians. CPU
seconds are those of the command and its server, loading included; they depend little on what else runs.
"""
import argparse
import json
import pathlib
import random
import resource
import statistics
import subprocess
import tempfile


def make_lines(count, steps):
    rng = random.Random(1)
    lines = []
    for _ in range(count):
        terms = [rng.randint(10, 99) for _ in range(steps + 1)]
        total, text = terms[0], []
        for i, term in enumerate(terms[1:], start=1):
            text.append(f"Step {i}: I take the sum so far, {total}, and add the next term, {term}: {total} + {term} = {total + term}.")
            total += term
        lines.append({"prompt": "Add these numbers one by one, a line a step, and end with the sum: " + ", ".join(map(str, terms)),
                      "completion": "\n".join([*text, f"The sum is {total}."]), "answer": str(total)})
    return lines


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def label(args, data, folder, more):
    command = [args.tandem, "label-steps", "--model", args.model, "--data", data, "--out", folder / "labels.jsonl", "--continuations", args.continuations,
               "--max-new-tokens", args.max_new_tokens, "--threads", args.threads, "--workers", args.workers, *more]
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", required=True)
    parser.add_argument("--model", required=True)
    for name, default in (("lines", 4), ("steps", 10), ("continuations", 4), ("max-new-tokens", 16), ("repeats", 2), ("threads", 2), ("workers", 4)):
        parser.add_argument("--" + name, type=int, default=default)
    args = parser.parse_args()
    ways = {"with": [], "without": ["--no-prefix-cache"]}
    counts, seconds, cpu = {}, {way: [] for way in ways}, {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "lines.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in make_lines(args.lines, args.steps)))
        for repeat in range(args.repeats):
            for way, more in ways.items():
                out = pathlib.Path(folder) / f"{way}_{repeat}"
                out.mkdir()
                before = cpu_seconds()
                counts[way] = label(args, data, out, more)
                cpu[way].append(round(cpu_seconds() - before, 2))
                seconds[way].append(round(counts[way].pop("seconds"), 2))
    print(json.dumps({
        "settings": {name: value for name, value in vars(args).items() if name != "tandem"},
        "counts": counts, "seconds": seconds, "cpu_seconds": cpu,
        "computed_share": round(counts["with"]["prompt_tokens_computed"] / counts["without"]["prompt_tokens_computed"], 4),
        "wall_time_ratio": round(statistics.median(seconds["with"]) / statistics.median(seconds["without"]), 4),
        "cpu_time_ratio": round(statistics.median(cpu["with"]) / statistics.median(cpu["without"]), 4)}))


if __name__ == "__main__":
    main()
