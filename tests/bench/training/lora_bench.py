#!/usr/bin/env python3
"""The demo with adapters, merged by the server and beside its weights, and the demo with all weights, by turns, for several seeds.
Prints a JSON line for each run and one with the ratios.

    .deps/venv/bin/python tests/bench/training/lora_bench.py [--seeds 3] [--rank 8] [--alpha 32] [--learning-rate 2e-4] [--steps 14]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[3]
TANDEM = SOURCE / "build" / "release" / "bin" / "tandem"
SOLVED = 0.8


def run(folder, name, seed, steps, lora):
    settings = {"trainer.run.out": folder, "trainer.run.name": name, "trainer.seed": seed, "trainer.steps": steps,
                "trainer.capture.spread": 0, **lora}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([TANDEM, "run", SOURCE / "examples" / "demo.yaml", *flags], cwd=SOURCE, check=True, capture_output=True)
    lines = (pathlib.Path(folder) / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "loss/total" in row]
    rewards = [row["reward/mean"] for row in rows]
    # Over two steps, as one step is of 64 completions.
    means = [statistics.mean(rewards[max(0, i - 1):i + 1]) for i in range(len(rewards))]
    solved = next((i + 1 for i, mean in enumerate(means) if mean >= SOLVED), None)

    def median(key):
        return round(statistics.median(row[key] for row in rows[2:]), 4)

    result = {"run": name.rsplit("_", 1)[0], "seed": seed, f"steps_to_{SOLVED}": solved, "last_reward": round(means[-1], 3)}
    for key in ("time/step", "time/rollout", "time/update", "time/push", "push/seconds", "push/pause_ms", "push/bytes", "push/arrived_share",
                "optimizer/state_bytes", "memory/gradients_bytes", "memory/peak_bytes", "drift/k3"):
        result[key] = median(key)
    print(json.dumps(result), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=32)
    parser.add_argument("--learning-rate", default="2e-4")
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    lora = {"trainer.lora.rank": args.rank, "trainer.lora.alpha": args.alpha, "trainer.optimizer.learning_rate": args.learning_rate}
    unmerged = {**lora, "server.engine.lora": "unmerged"}
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, args.seeds + 1):
            rounds.append([run(folder, f"{name}_{seed}", seed, args.steps, settings)
                           for name, settings in (("full", {}), ("merged", lora), ("unmerged", unmerged))])
    for place, name in ((1, "merged_over_full"), (2, "unmerged_over_full")):
        ratios = {}
        for key in ("time/step", "time/rollout", "time/update", "time/push", "push/seconds", "optimizer/state_bytes", "memory/gradients_bytes",
                    "memory/peak_bytes"):
            each = [one[place][key] / one[0][key] for one in rounds]
            ratios[key] = {"median": round(statistics.median(each), 3), "min": round(min(each), 3), "max": round(max(each), 3)}
        print(json.dumps({name: ratios}))


if __name__ == "__main__":
    main()
