#!/usr/bin/env python3
"""The figure of docs/research/engine_survey.md, from the numbers of the survey.

    .deps/venv/bin/python docs/figures/engine_survey.py survey/survey.json
"""
import argparse
import json
import math
import pathlib

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tandem", "font.size": 10})
from matplotlib import pyplot  # noqa: E402

FOLDER = pathlib.Path(__file__).parent
LEAST = 1e-13  # what is drawn for 0


def names_of(pairs):
    """Those that sample, and all that score, in the order in which the survey's table has them."""
    rows, columns = [], []
    for pair in pairs:
        a, b = pair.split("--")
        rows += [a] if a not in rows else []
        columns += [b] if b not in columns else []
    order = sorted(columns, key=lambda name: (not name.startswith("tandem"), not name.startswith("transformers"), not name.startswith("vllm"),
                                              name))
    return [name for name in order if name in rows], order


def short(value):
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-") if value < 0.01 else f"{value:.2g}"


def panel(figure, axis, pairs, key, title):
    rows, columns = names_of(pairs)
    values = [[pairs[f"{a}--{b}"][key]["value"] if f"{a}--{b}" in pairs else math.nan for b in columns] for a in rows]
    drawn = axis.imshow([[math.log10(max(value, LEAST)) for value in row] for row in values], cmap="cividis", aspect="auto",
                        vmin=-8 if key == "k3" else -6)
    axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axis.set_yticks(range(len(rows)), rows)
    axis.set(xlabel="scored by", title=title)
    middle = sum(drawn.get_clim()) / 2
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if not math.isnan(value):
                axis.text(x, y, short(value), ha="center", va="center", fontsize=6.5,
                          color="black" if math.log10(max(value, LEAST)) > middle else "white")
    figure.colorbar(drawn, ax=axis, label="power of ten", shrink=0.8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("survey", type=pathlib.Path)
    given = parser.parse_args()
    pairs = json.loads(given.survey.read_text(encoding="utf-8"))["pairs"]
    figure, axes = pyplot.subplots(2, 1, figsize=(10, 12), layout="constrained")
    panel(figure, axes[0], pairs, "k3", "k3, nats a token")
    panel(figure, axes[1], pairs, "mean_abs", "mean |delta|, nats a token")
    for axis in axes:
        axis.set_ylabel("sampled by")
    path = FOLDER / "engine_survey.svg"
    figure.savefig(path, metadata={"Date": None})
    print(path)


if __name__ == "__main__":
    main()
