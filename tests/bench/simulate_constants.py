#!/usr/bin/env python3
"""Constants of this machine for `tandem bench simulate --check`, from its benchmarks and one run.

    build/release/bin/tandem bench rollout --model models/smollm2-135m-instruct \\
        --cases decode-1,decode-8,decode-32,decode-64,prefill-8 --json > rollout.json
    build/release/bin/tandem bench push --model models/smollm2-135m-instruct --num-servers 1 \\
        --transports stream --json > push.json
    build/release/bin/tandem demo --steps 6 --seed 2 --name constants
    .deps/venv/bin/python tests/bench/simulate_constants.py --rollout rollout.json --push push.json \\
        --run runs/constants --model models/smollm2-135m-instruct > constants.json
    build/release/bin/tandem bench simulate --check runs/ANOTHER --constants constants.json

What is checked must be another run than the one named here, on the same, quiet machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build" / "release" / "bin"))


def of_rollout(table):
    """Tokens a second of decoding by batch, and of prompts."""
    cases = table["cases"]
    values = {f"decode_tokens_per_second_{batch}":
              cases[f"decode-{batch}"]["decode"]["tandem"]["tokens_per_second"]["median"]
              for batch in (1, 8, 32, 64)}
    values["prefill_tokens_per_second"] = (
        cases["prefill-8"]["prefill"]["tandem"]["tokens_per_second"]["median"])
    return values


def of_push(table):
    """Bytes a second on the wire (dense), and of whole tensors verified and packed (delta)."""
    rows = {row["form"]: row for row in table["rows"]
            if row["transport"] == "stream" and row["servers"] == 1}
    dense, delta = rows["dense"], rows["delta"]
    return {"send_bytes_per_second": dense["wire_bytes"] / dense["send_seconds"]["median"],
            "verify_bytes_per_second": table["dense_bytes"] / delta["verify_seconds"]["median"],
            "pack_bytes_per_second": table["dense_bytes"] / delta["pack_seconds"]["median"]}


def of_run(lines, prompts, servers, prompt_tokens):
    """Packed tokens a second of a train step and what a push takes before it begins, without step 1."""
    steps = [line for line in lines if line["step"] > 1]
    packed = [line["loss/num_tokens"] + prompts * prompt_tokens for line in steps]
    cast = statistics.median(line["time/push"] - line["push/seconds"] for line in steps)
    # A line's time_s is of when its groups were there.
    between = [after["time_s"] - after["time/rollout"]
               - (before["time_s"] - before["time/rollout"] + before["time/step"])
               for before, after in zip(steps, steps[1:]) if before.get("time/eval", 0) == 0]
    return {"train_tokens_per_second": sum(packed) / sum(line["time/update"] for line in steps),
            "cast_bytes_per_second": steps[0]["push/dense_bytes"] / servers / cast,
            "record_seconds": max(1e-3, statistics.median(between)) if between else 0.05,
            "prompt_tokens": prompt_tokens}


def prompt_tokens_of(run, model):
    """Median over the prompts of the first step."""
    prompts = [json.loads(line)["prompt"]
               for line in (run / "rollouts/step_1.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts)
    done = subprocess.run([BINARIES / "tandem", "tokenize", "--model", model], input=text,
                          capture_output=True, text=True, check=True)
    return statistics.median(len(json.loads(line)["ids"]) for line in done.stdout.splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (("rollout", "of tandem bench rollout --json"),
                       ("push", "of tandem bench push --json"), ("run", "directory, staleness 0"),
                       ("model", "directory")):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, help=what)
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in (arguments.run / "metrics.jsonl").read_text().splitlines()]
    groups = len((arguments.run / "rollouts/step_1.jsonl").read_text().splitlines())
    servers = len(json.loads((arguments.run / "run.json").read_text())["servers"])
    found = {"tandem bench rollout": of_rollout(json.loads(arguments.rollout.read_text())),
             "tandem bench push": of_push(json.loads(arguments.push.read_text())),
             f"run {arguments.run.name}":
             of_run([line for line in lines if line["step"] > 0], groups, servers,
                    prompt_tokens_of(arguments.run, arguments.model))}
    print(json.dumps({name: {"value": round(value, 6), "source": source}
                      for source, values in found.items() for name, value in values.items()},
                     indent=1))


if __name__ == "__main__":
    main()
