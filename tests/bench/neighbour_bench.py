#!/usr/bin/env python3
"""Engines on a machine where another process keeps one core busy: what each loses, and what it leaves to the other.

The neighbour counts in a loop on core 0. For each engine, `tandem bench rollout` (or a peer's script) runs its cases
alone and beside the neighbour, in turn; the neighbour's counts a second beside each engine are compared with those it
makes alone. Half of them is a fair share where an engine has a thread for every core. Prints one JSON object.

    .deps/venv/bin/python tests/bench/neighbour_bench.py [--model DIR] [--peer llama_cpp] [--repeats 3]
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEIGHBOUR = """
import os, signal, sys, time
os.sched_setaffinity(0, {0})
count, start = 0, time.perf_counter()
def end(*_):
    print(count / (time.perf_counter() - start))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    count += 1
"""
CASES = [{"name": f"decode-{batch}", "batch": batch, "group": min(batch, 8), "prompt_tokens": 64, "new_tokens": 64}
         for batch in (1, 32)]


class Neighbour:
    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc):
        self.process.send_signal(signal.SIGTERM)
        self.counts_per_second = float(self.process.stdout.read())
        self.process.wait()


def tandem(model):
    done = subprocess.run(
        [ROOT / "build/release/bin/tandem", "bench", "rollout", "--model", model, "--cases",
         ",".join(case["name"] for case in CASES), "--max-new-tokens", "64", "--repeats", "1", "--json"],
        check=True, capture_output=True, text=True)
    cases = json.loads(done.stdout)["cases"]
    return {name: case["decode"]["tandem"]["tokens_per_second"]["median"] for name, case in cases.items()}


def peer(name, model):
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, HERE / "peers" / f"{name}.py", "--model", model, "--threads", "0",
                           "--cases", json.dumps(CASES)], check=True, capture_output=True, text=True, env=environment)
    answer = json.loads(done.stdout.splitlines()[-1])
    return {case["name"]: case["batch"] * (case["new_tokens"] - 1) / answer[case["name"]]["decode_seconds"]
            for case in CASES}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "smollm2-135m-instruct")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    engines = {"tandem": tandem, **{name: (lambda model, name=name: peer(name, model)) for name in args.peer}}
    runs = {name: [] for name in engines}
    for _ in range(args.repeats):
        with Neighbour() as quiet:
            time.sleep(3)
        for name, engine in engines.items():
            alone = engine(args.model)
            with Neighbour() as neighbour:
                beside = engine(args.model)
            runs[name].append({
                "left_to_neighbour": neighbour.counts_per_second / quiet.counts_per_second,
                **{f"{case}_kept": beside[case] / alone[case] for case in alone},
                **{f"{case}_beside_tokens_per_second": beside[case] for case in beside}})
    print(json.dumps({"benchmark": "neighbour", **{
        name: {key: {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
                     "max": round(max(values), 3)}
               for key in repeats[0] for values in [[repeat[key] for repeat in repeats]]}
        for name, repeats in runs.items()}}))


if __name__ == "__main__":
    main()
