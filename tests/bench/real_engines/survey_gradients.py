"""What a GRPO gradient loses where a pair of engines goes uncorrected, from the numbers of tests/bench/engine_survey.py.

    OMP_NUM_THREADS=1 nice .deps/venv/bin/python tests/bench/real_engines/survey_gradients.py survey [--engines NAME...] [--trainers NAME...]

For one completion of each prompt: the gradient of sum log pi (what a step takes without a correction) and of sum w log pi, w = pi / mu
(what it should take), by transformers in float32 over all weights. The survey has no rewards: advantages are random signs of whole
completions, so that squared lengths add up over completions. Written to survey/gradients.json and printed as a table."""
from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/smollm2-135m-instruct"
sys.path.insert(0, str(ROOT / "tests/bench"))
from engine_survey import ENGINES, read_lines  # noqa: E402


def one_of_each_prompt(rows: list[dict[str, Any]]) -> list[int]:
    first: dict[tuple[int, ...], int] = {}
    for index, row in enumerate(rows):
        first.setdefault(tuple(row["ids"][:row["prompt"]]), index)
    return sorted(first.values())


def dot(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> float:
    return sum(float(torch.dot(a.flatten(), b.flatten())) for a, b in zip(one, other))


def of_row(model: Any, row: dict[str, Any], scores: list[list[float]]) -> list[tuple[float, float, float]]:
    """For each trainer's scores: squared length of the gradient without weights, of what the weights add, and their product."""
    ids = torch.tensor([row["ids"]])
    logits = model(input_ids=ids).logits[0, row["prompt"] - 1:-1]
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[0, row["prompt"]:, None])[:, 0]
    parameters = list(model.parameters())
    plain = torch.autograd.grad(logprobs.sum(), parameters, retain_graph=True)
    found = []
    for score in scores:
        delta = torch.tensor(score) - torch.tensor(row["logprobs"])
        added = torch.autograd.grad((logprobs * delta.expm1()).sum(), parameters, retain_graph=True)
        found.append((dot(plain, plain), dot(added, added), dot(plain, added)))
    return found


def summary(parts: list[tuple[float, float, float]]) -> dict[str, float]:
    plain, added, product = (sum(part[i] for part in parts) for i in range(3))
    exact = plain + 2 * product + added
    return {"error": math.sqrt(added / exact), "cosine": (plain + product) / math.sqrt(plain * exact)}


def with_intervals(parts: list[tuple[float, float, float]]) -> dict[str, Any]:
    """95 % by resampling completions."""
    rng = random.Random(1)
    resampled = [summary([rng.choice(parts) for _ in parts]) for _ in range(2000)]
    out: dict[str, Any] = {"rows": len(parts)}
    for key, value in summary(parts).items():
        values = sorted(one[key] for one in resampled)
        out[key] = {"value": value, "low": values[50], "high": values[1949]}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("survey", type=pathlib.Path)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--trainers", nargs="+", default=["transformers-fp32", "transformers-bf16-sdpa"], choices=list(ENGINES))
    given = parser.parse_args()
    path = given.survey / "gradients.json"
    done = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for engine in given.engines:
        trainers = [name for name in given.trainers if f"{engine}--{name}" not in done and (given.survey / f"{engine}--{name}.jsonl").exists()]
        if not trainers:
            continue
        rows = read_lines(given.survey / f"{engine}.jsonl")
        scores = [read_lines(given.survey / f"{engine}--{name}.jsonl") for name in trainers]
        parts = [of_row(model, rows[i], [of_trainer[i] for of_trainer in scores]) for i in one_of_each_prompt(rows)]
        for at, name in enumerate(trainers):
            done[f"{engine}--{name}"] = with_intervals([part[at] for part in parts])
        path.write_text(json.dumps(done, indent=1), encoding="utf-8")
    print("| sampled by | trainer | error of the gradient | cosine |\n|---|---|---|---|")
    for pair, found in done.items():
        cells = [f"{found[key]['value']:.4g} [{found[key]['low']:.4g}, {found[key]['high']:.4g}]" for key in ("error", "cosine")]
        print("| " + " | ".join([*pair.split("--"), *cells]) + " |")


if __name__ == "__main__":
    main()
