"""Runs of the examples of several turns (examples/guess_number.sh, examples/calculator.sh), for their tests."""
import json
import os
import subprocess

import small_run


def run_example(folder, name, *arguments, **variables):
    """Runs the script in a folder that has nothing but examples/ and python/; returns its run directory."""
    for part in ("examples", "python"):
        (folder / part).symlink_to(small_run.SOURCE / part)
    done = subprocess.run(["sh", f"examples/{name}.sh", *arguments], cwd=folder, capture_output=True, text=True, timeout=3000,
                          env={**os.environ, "TANDEM": str(small_run.TANDEM), **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / f"{name}-grpo"


def lines_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "reward/mean" in line], [line for line in lines if "eval/greedy" in line]


def conversations_of(run, step):
    """The completions of a step as (what the model wrote, what it was told) in the order of the turns."""
    for line in (run / "rollouts" / f"step_{step}.jsonl").read_text(encoding="utf-8").splitlines():
        for completion in json.loads(line)["completions"]:
            at, parts = 0, []
            for kind, count in completion.get("segments", [["drawn", len(completion["tokens"])]]):
                parts.append((kind, "".join(completion["tokens"][at:at + count])))
                at += count
            assert at == len(completion["tokens"])
            yield completion, parts
