#!/usr/bin/env python3
"""The figures of docs/research/phase_diagram.md, from the summary of one study.

    build/release/bin/tandem drift phase --study all --seeds 5 --out runs/phase
    .deps/venv/bin/python docs/figures/phase_diagram.py runs/phase/summary.json
"""
import argparse
import json
import pathlib
import re

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tandem", "font.size": 10})
from matplotlib import pyplot  # noqa: E402

FOLDER = pathlib.Path(__file__).parent
RATES = {"1e-3": "#0072b2", "3e-3": "#009e73", "1e-2": "#d55e00"}
DIRECTIONS = {"fresh_noise": ("#999999", "noise, anew for every token"),
              "frozen_noise": ("#000000", "noise, fixed by context"),
              "rare_tokens": ("#e69f00", "rare tokens only"),
              "token_bias": ("#56b4e9", "bias of the vocabulary"),
              "towards_reward": ("#d55e00", "towards what is rewarded"),
              "away_from_reward": ("#0072b2", "away from what is rewarded"),
              "sharpen": ("#cc79a7", "sharper"),
              "flatten": ("#009e73", "flatter")}
METHODS = {"none": "no correction", "token_tis": "token TIS", "sequence_mis": "sequence MIS"}
BUDGETS = {"constant": "equal KL(mu || pi) in every context",
           "by_uncertainty": "KL(mu || pi) = strength x (1 - sum p²)"}


def bars(interval):
    """What errorbar wants: below and above the mean."""
    return interval["mean"] - interval["low"], interval["high"] - interval["mean"]


def draw(axis, points, **style):
    """points: (x, interval) in any order."""
    points = sorted(points, key=lambda point: point[0])
    below, above = zip(*(bars(interval) for _, interval in points))
    axis.errorbar([x for x, _ in points], [interval["mean"] for _, interval in points],
                  yerr=[below, above], capsize=2, linewidth=1.4, markersize=4, **style)


def tidy(axis):
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def lag_and_rate(cell):
    """(lag, rate) of a cell of completions of 8 tokens, or None."""
    found = re.fullmatch(r"lag_(\d+)(?:_lr_(.*))?", cell)
    return (int(found[1]), found[2] or "3e-3") if found else None


def boundary(summary):
    """Score against lag, one line a learning rate and method."""
    figure, axis = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for method, style in (("none", "o-"), ("token_tis", "s--")):
        for rate, colour in RATES.items():
            points = [(lag_and_rate(row["cell"])[0], row["score"]) for row in summary["table"]
                      if row["method"] == method and lag_and_rate(row["cell"])
                      and lag_and_rate(row["cell"])[1] == rate]
            draw(axis, points, color=colour, fmt=style, label=f"{METHODS[method]}, lr {rate}")
    axis.set(xscale="log", xlabel="lag (updates)", ylabel="exact pass probability at the end",
             ylim=(0, 1.05))
    axis.set_xticks([4, 8, 16, 32, 64, 128], ["4", "8", "16", "32", "64", "128"], minor=False)
    axis.minorticks_off()
    tidy(axis)
    axis.legend(frameon=False, fontsize=8)
    return figure


def kinds(summary):
    """Loss against strength, one line a direction; a column a method, a row a budget."""
    figure, axes = pyplot.subplots(len(BUDGETS), len(METHODS), figsize=(11, 6.6), sharey=True,
                                   layout="constrained")
    for row, (budget, title) in zip(axes, BUDGETS.items()):
        for axis, method in zip(row, METHODS):
            for direction, (colour, label) in DIRECTIONS.items():
                points = [(entry["strength"], entry["loss"]) for entry in summary["kinds"]
                          if (entry["direction"], entry["budget"], entry["method"])
                          == (direction, budget, method)]
                draw(axis, points, color=colour, fmt="o-", label=label)
            axis.set(xscale="log", ylim=(-0.1, 1.05), title=METHODS[method], xlabel=title)
            strengths = sorted({entry["strength"] for entry in summary["kinds"]
                                if entry["budget"] == budget})
            axis.set_xticks(strengths, [f"{s:g}" for s in strengths], minor=False)
            axis.minorticks_off()
            tidy(axis)
        row[0].set_ylabel("loss of pass probability")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("summary", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER)
    args = parser.parse_args()
    summary = json.loads(args.summary.read_text(encoding="utf-8"))
    for name, figure in (("phase_boundary", boundary(summary)), ("gap_kinds", kinds(summary))):
        path = args.out / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        print(path)


if __name__ == "__main__":
    main()
