#!/usr/bin/env python3
"""The figures of docs/research/scaling_on_paper.md: runs `tandem bench simulate` and draws what it says.

    .deps/venv/bin/python docs/figures/scaling_on_paper.py
"""
import argparse
import json
import pathlib
import subprocess

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tandem", "font.size": 10})
from matplotlib import pyplot  # noqa: E402

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parent.parent
MODELS = {"7b": ("#0072b2", "7B"), "70b": ("#d55e00", "70B")}
STYLES = {0: "o:", 1: "s-", 4: "^--"}
SIZES = "8,16,32,64,128,256,512,1024"
GROWING = 8  # prompts a GPU; 512 prompts at 64 GPUs, as in the fixed batch
PARTS = {"compute_seconds": ("#0072b2", "train"), "reduce_seconds": ("#56b4e9", "sums not hidden"),
         "push_seconds": ("#e69f00", "push"), "wait_seconds": ("#bbbbbb", "trainer waits for samples")}


def simulate(binary, *flags):
    done = subprocess.run([binary, "bench", "simulate", "--json", *map(str, flags)], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)


def sizes_that_fit(answer):
    return [size for size in answer["sizes"] if "best" in size]


def tidy(axis):
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def logarithmic_sizes(axis, ticks=(8, 16, 32, 64, 128, 256, 512, 1024)):
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel("GPUs (trainer and servers)")


def throughput(binary):
    """Tokens a second a GPU against GPUs: a batch that stays, and one that grows."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained", sharey="row")
    for axis, title, flags in ((axes[0], "512 prompts a step, whatever the size", []),
                               (axes[1], f"{GROWING} prompts a step for each GPU",
                                ["--prompts-per-gpu", GROWING])):
        for model, (color, label) in MODELS.items():
            for staleness, style in STYLES.items():
                answer = simulate(binary, "--model", model, "--gpus", SIZES, "--staleness",
                                  staleness, *flags)
                points = [(size["gpus"], size["best"]["tokens_per_second"] / size["gpus"])
                          for size in sizes_that_fit(answer)]
                axis.plot(*zip(*points), style, color=color, linewidth=1.4, markersize=4,
                          label=f"{label}, staleness {staleness}")
        logarithmic_sizes(axis)
        axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        tidy(axis)
    axes[0].set_ylabel("sampled and trained tok/s a GPU")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=6, loc="outside lower center",
                  columnspacing=1)
    return figure


def splits(binary):
    """Tokens a second against the trainer's share of the GPUs, of the best split's."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained", sharey="row")
    shades = {32: 0.35, 64: 0.55, 256: 0.75, 1024: 1.0}
    for axis, (model, (color, label)) in zip(axes, MODELS.items()):
        answer = simulate(binary, "--model", model, "--gpus", ",".join(map(str, shades)))
        for size in sizes_that_fit(answer):
            best = size["best"]["tokens_per_second"]
            axis.plot([split["trainer_gpus"] / size["gpus"] for split in size["splits"]],
                      [split["tokens_per_second"] / best for split in size["splits"]], "o-",
                      color=color, alpha=shades[size["gpus"]], markersize=3,
                      label=f"{size['gpus']} GPUs")
        axis.set_title(f"{label}, staleness 1, 512 prompts a step", fontsize=10)
        axis.set_xlabel("trainer's share of the GPUs")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1.05)
        axis.legend(fontsize=8, loc="lower center")
        tidy(axis)
    axes[0].set_ylabel("tok/s, of the best split's")
    return figure


def parts(binary):
    """Where a step's time goes at the best split."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained", sharey="row")
    for axis, (model, (_, label)) in zip(axes, MODELS.items()):
        answer = simulate(binary, "--model", model, "--gpus", SIZES)
        sizes = sizes_that_fit(answer)
        names = [f"{size['gpus']}\n{size['best']['trainer_gpus']}:{size['best']['rollout_gpus']}"
                 for size in sizes]
        bottom = [0.0] * len(sizes)
        for key, (color, part) in PARTS.items():
            shares = [size["best"][key] / size["best"]["step_seconds"] for size in sizes]
            axis.bar(names, shares, bottom=bottom, color=color, label=part, width=0.7)
            bottom = [low + share for low, share in zip(bottom, shares)]
        axis.set_title(f"{label}, staleness 1, 512 prompts a step", fontsize=10)
        axis.tick_params(axis="x", labelsize=8)
        axis.set_xlabel("GPUs, trainer : servers")
        tidy(axis)
    axes[0].set_ylabel("share of a step")
    axes[0].legend(fontsize=8, loc="lower left")
    return figure


def ranges(binary):
    """What each assumption is worth."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
    for axis, (model, (color, label)) in zip(axes, MODELS.items()):
        answer = simulate(binary, "--model", model, "--gpus", 64, "--ranges")
        effects = answer["ranges"][:9][::-1]
        for row, effect in enumerate(effects):
            ends = effect["at_low"], effect["at_high"]
            axis.barh(row, max(ends) - min(ends), left=min(ends), color=color, height=0.6)
            axis.annotate(f"{effect['low']:g} to {effect['high']:g}", (max(*ends, 1), row),
                          xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
        axis.set_yticks(range(len(effects)), [effect["name"] for effect in effects], fontsize=8)
        axis.axvline(1, color="black", linewidth=0.8)
        ends = [end for effect in effects for end in (effect["at_low"], effect["at_high"], 1)]
        axis.set_xlim(min(ends) - 0.03, max(ends) + 0.35 * (max(ends) - min(ends)) + 0.03)
        axis.set_title(f"{label}, 64 GPUs, 512 prompts a step", fontsize=10)
        axis.set_xlabel("tok/s, over those with the built-in value")
        tidy(axis)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tandem", default=ROOT / "build/release/bin/tandem")
    parser.add_argument("--png", type=pathlib.Path, help="also as PNG, into this folder")
    arguments = parser.parse_args()
    for name, draw in (("throughput", throughput), ("splits", splits), ("parts", parts),
                       ("ranges", ranges)):
        figure = draw(arguments.tandem)
        figure.savefig(FOLDER / f"scaling_{name}.svg", metadata={"Date": None})
        if arguments.png:
            figure.savefig(arguments.png / f"scaling_{name}.png", dpi=110)
        print(FOLDER / f"scaling_{name}.svg")


if __name__ == "__main__":
    main()
