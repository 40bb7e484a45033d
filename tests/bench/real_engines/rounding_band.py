"""How far healthy engines in 16 bits are from the referee's own rounding, from the numbers of tests/bench/engine_survey.py.

    OMP_NUM_THREADS=1 .deps/venv/bin/python tests/bench/real_engines/rounding_band.py survey

The referee calls a gap rounding where three numbers stay below the limits of drift_lab/referee/residuals.h, which are read from there:
its root mean square in units of a scale by log-prob, the share of tokens beyond five scales, and the count of tokens far beyond. Here
transformers in float32 stands for the referee, and transformers in bfloat16 with eager attention for its own rounding. For each engine,
--records records of --tokens tokens are made of whole completions, drawn at random from the survey; the table has quantiles over them."""
from __future__ import annotations

import argparse
import json
import pathlib
import random
import re

import numpy as np

HEALTHY = ["transformers-bf16-sdpa", "tandem-bf16", "tandem-trainer-bf16", "tandem-exact", "vllm-bf16", "llama.cpp-bf16", "llama.cpp-f16"]
ROUNDED = ["llama.cpp-q8_0", "llama.cpp-q4_K"]
MOST_NATS, HALF = 6.0, 40
HEADER = pathlib.Path(__file__).resolve().parents[3] / "drift_lab/referee/residuals.h"


def limit(name: str) -> float:
    found = re.search(rf"{name} = ([0-9.]+);", HEADER.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{HEADER} has no {name}")
    return float(found[1])


ROUNDING, TAIL, EXTREME, MOST_EXTREME = (limit(name) for name in ("kMostRounding", "kMostTail", "kExtreme", "kMostExtreme"))


def read(path: pathlib.Path) -> list[np.ndarray]:
    return [np.array(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def scales(logprobs: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    """The noise curve of drift_lab/referee/residuals.cc at each token."""
    order = np.argsort(logprobs, kind="stable")
    prefix = np.concatenate([[0.0], np.cumsum(np.clip(rounding[order], -MOST_NATS, MOST_NATS) ** 2)])
    place = np.arange(len(order))
    reach = np.minimum(HALF, len(order) - 1 - place) + 3
    start, end = np.maximum(place - reach, 0), np.minimum(place + reach + 1, len(order))
    out = np.empty(len(order))
    out[order] = np.sqrt((prefix[end] - prefix[start]) / (end - start)) + 1e-5
    return out


def sizes(gap: np.ndarray, own: np.ndarray, rounding: np.ndarray) -> tuple[float, float, float, float]:
    """Root mean square, share beyond five scales, tokens beyond EXTREME over those allowed, correlation with the rounding."""
    scale = scales(own, rounding)
    z = np.clip(gap, -MOST_NATS, MOST_NATS) / scale
    left, noise = np.clip(z, -4, 4), np.clip(rounding / scale, -4, 4)
    extreme = np.sum(np.abs(z) > EXTREME) / (1 + MOST_EXTREME * len(z))
    return float(np.sqrt(np.mean(np.minimum(z * z, EXTREME**2)))), float(np.mean(np.abs(z) > 5)), float(extreme), float(np.corrcoef(left, noise)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("survey", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--records", type=int, default=2000)
    given = parser.parse_args()
    drawn_by = [name for name in [*HEALTHY[:2], "transformers-bf16-eager", "transformers-fp32", *HEALTHY[4:], *ROUNDED, "vllm-fp32", "tandem-fp32"]
                if (given.survey / f"{name}--transformers-fp32.jsonl").exists()]
    print(f"| engine | tokens a record | root mean square: 0.1 % | 50 % | 99 % | 99.9 % | largest | beyond five: 99.9 % | largest | correlation 50 % | called rounding (at most {ROUNDING}, {100 * TAIL} %) |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for engine in HEALTHY + ROUNDED:
        rows = []
        for name in drawn_by:
            paths = [given.survey / f"{name}--{one}.jsonl" for one in ("transformers-fp32", "transformers-bf16-eager", engine)]
            if all(path.exists() for path in paths):
                rows += list(zip(*(read(path) for path in paths)))
        for tokens in given.tokens:
            rng, found = random.Random(1), []
            for _ in range(given.records):
                chosen: list[tuple[np.ndarray, ...]] = []
                while sum(len(row[0]) for row in chosen) < tokens:
                    chosen.append(rng.choice(rows))
                own, rounded, side = (np.concatenate(column) for column in zip(*chosen))
                found.append(sizes(side - own, own, rounded - own))
            rms, tail, extreme, like = (np.array(column) for column in zip(*found))
            called = (rms <= ROUNDING) & (tail <= TAIL) & (extreme <= 1)
            cells = [f"{np.quantile(rms, q):.2f}" for q in (0.001, 0.5, 0.99, 0.999, 1)] + [f"{100 * np.quantile(tail, q):.2f} %" for q in (0.999, 1)]
            print(f"| {engine} | {tokens} | {' | '.join(cells)} | {np.quantile(like, .5):.2f} | {called.sum()} of {len(called)} |", flush=True)


if __name__ == "__main__":
    main()
