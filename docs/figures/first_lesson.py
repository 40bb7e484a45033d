#!/usr/bin/env python3
"""The figure of docs/first_lesson.md, from two demo runs.

    for cast in nearest dither; do
      build/release/bin/tandem demo --seed 1 --rounding $cast --out runs/lesson --name $cast
    done
    .deps/venv/bin/python docs/figures/first_lesson.py runs/lesson/nearest runs/lesson/dither
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tandem", "font.size": 10})
from matplotlib import pyplot  # noqa: E402

PANELS = [("reward/mean", "mean reward of the sampled completions"),
          ("drift/mean_abs_delta", "drift: mean abs(delta) in nats"),
          ("push/arrived_share", "share of the update that arrived")]
COLOURS = ["#d55e00", "#0072b2", "#009e73"]


def curve(run, key):
    """Steps and values of one number of metrics.jsonl."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).with_name("first_lesson.svg"))
    args = parser.parse_args()

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(11, 3.2), layout="constrained")
    for axis, (key, title) in zip(axes, PANELS):
        for run, colour in zip(args.runs, COLOURS):
            axis.plot(*curve(run, key), label=run.name, color=colour, marker="o", markersize=3)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("train step")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(args.out, metadata={"Date": None})
    print(args.out)


if __name__ == "__main__":
    main()
