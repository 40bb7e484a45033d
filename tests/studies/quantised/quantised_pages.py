"""Tables and figures of the study of quantised rollouts, and their places in docs/research."""
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from quantised_runs import CORRECTIONS, FORMATS, SOLVED, TASK_TITLES, TASKS, TRAINED  # noqa: E402
from seed_statistics import interval  # noqa: E402
from study_pages import COLOURS, FIGURES, PAGES, pyplot, put, shown, table  # noqa: E402

PAGE = PAGES / "quantised_rollouts.md"
COLUMNS = [*TRAINED, "best"]


def smooth(curve):
    """The mean of each step and the one before it: a step is few completions."""
    return [statistics.mean(curve[max(0, i - 1):i + 1]) for i in range(len(curve))]


def steps_to(curve, reward=SOLVED):
    """Steps until the smoothed curve reaches a reward; None where it does not."""
    return next((i + 1 for i, mean in enumerate(smooth(curve)) if mean >= reward), None)


def group(results, **wanted):
    return [result for result in results if all(result[key] == value for key, value in wanted.items())]


def correction_of(column, best, task, form):
    return best.get((task, form)) if column == "best" else column


def steps_shown(runs):
    steps = [steps_to(run["curve"]) for run in runs]
    if not steps:
        return "-"
    if None in steps:
        return f"{sum(step is not None for step in steps)} of {len(steps)} runs"
    return f"{statistics.mean(steps):.1f} ({min(steps)} to {max(steps)})"


def learning(curves, best, task):
    """Held-out accuracy, and steps to the reward, of every format under every correction."""
    rows = []
    for form in FORMATS:
        row = [form]
        for column in COLUMNS:
            runs = group(curves, task=task, format=form, correction=correction_of(column, best, task, form))
            name = f" [{correction_of(column, best, task, form)}]" if column == "best" and runs else ""
            row.append((shown([run["held_out"] for run in runs]) + "; " + steps_shown(runs) + name) if runs else "-")
        if any(cell != "-" for cell in row[1:]):
            rows.append(row)
    return table(["rollouts", *COLUMNS], rows) if rows else ""


def mismatch(curves, task):
    """The size of the mismatch and the effective sample size over the runs without a correction."""
    rows = []
    for form in FORMATS:
        runs = group(curves, task=task, format=form, correction="TIS")
        if runs:
            rows.append([form, *(shown_small([run[key] for run in runs]) for key in ("k3", "ess", "sequence_ess"))])
    return table(["rollouts", "k3, nats", "ESS of tokens", "ESS of completions"], rows) if rows else ""


def shown_small(values):
    mean, low, high = interval(values)
    return f"{mean:.3g} ({low:.3g} to {high:.3g})"


def predicted(replays, best, task):
    """Bias and noise of the gradient of the captured step under every correction."""
    rows = []
    for form in FORMATS:
        for result in group(replays, task=task, format=form):
            row = [form, f"{result['k3']:.2g}", f"{result['sequence_ess']:.2f}"]
            for title in CORRECTIONS:
                effect = result["methods"].get(title)
                noise = "-" if effect is None or effect["noise"] is None else f"{effect['noise']:.2f}"
                row.append(f"{effect['bias']:.3f} / {noise} / {effect['ess']:.2f}" if effect else "-")
            rows.append(row + [best.get((task, form), "-")])
    return table(["rollouts", "k3", "ESS of completions", *CORRECTIONS, "best"], rows) if rows else ""


def ratios(times, task, key, form):
    """form over bf16, repeat by repeat."""
    base = {result["repeat"]: result[key] for result in group(times, task=task, format="bf16")}
    return [result[key] / base[result["repeat"]] for result in group(times, task=task, format=form) if result["repeat"] in base]


def time_to_reward(curves, task, form, correction, seconds):
    """Steps to the reward times the seconds of a step; how many runs reached it where not all did."""
    steps = [steps_to(run["curve"]) for run in group(curves, task=task, format=form, correction=correction)]
    if not steps:
        return "-"
    reached = [step * seconds for step in steps if step is not None]
    return shown(reached) + " s" if len(reached) == len(steps) else f"{len(reached)} of {len(steps)} runs"


def speed(times, curves, best, task):
    """Times beside those of bf16 in the same repeat, and the time to the reward."""
    rows = []
    for form in FORMATS:
        timed = group(times, task=task, format=form)
        if not timed:
            continue
        seconds = statistics.median(result["step"] for result in timed)
        to_reward = [time_to_reward(curves, task, form, correction_of(column, best, task, form), seconds) for column in ("TIS", "best")]
        rows.append([form, f"{statistics.median(r['tokens_per_s'] for r in timed):.0f}", shown(ratios(times, task, "tokens_per_s", form)),
                     shown(ratios(times, task, "rollout", form)), shown(ratios(times, task, "push", form)),
                     f"{seconds:.2f}", shown(ratios(times, task, "step", form)), *to_reward])
    head = ["rollouts", "tokens per second", "over bf16", "rollout time over bf16", "push over bf16", "seconds a step", "step over bf16",
            f"time to reward {SOLVED} with TIS", "with the best"]
    return table(head, rows) if rows else ""


def curves_figure(curves, best, path):
    figure, axes = pyplot.subplots(len(TASKS), len(FORMATS), figsize=(9, 4.6), layout="constrained", sharey=True, sharex="row")
    for row, task in zip(axes, TASKS):
        bf16 = [smooth(run["curve"]) for run in group(curves, task=task, format="bf16", correction="TIS")]
        for axis, form in zip(row, FORMATS):
            if bf16:
                axis.fill_between(range(1, len(bf16[0]) + 1), *(list(map(edge, zip(*bf16))) for edge in (min, max)), color="#dddddd",
                                  label="bf16 with TIS, all seeds")
            for colour, column in zip(COLOURS[1:], COLUMNS):
                runs = group(curves, task=task, format=form, correction=correction_of(column, best, task, form))
                if column == "best" and correction_of(column, best, task, form) in TRAINED:
                    continue
                means = [statistics.mean(values) for values in zip(*(smooth(run["curve"]) for run in runs))]
                if means:
                    axis.plot(range(1, len(means) + 1), means, color=colour, linewidth=1.2, label=column)
            axis.set_title(f"{task}, {form}", fontsize=8)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("share right")
    most = max(axes[0], key=lambda axis: len(axis.lines))  # has a line of every column
    axes[-1][0].legend(*most.get_legend_handles_labels(), fontsize=6, frameon=False, loc="lower left")
    for axis in axes[-1]:
        axis.set_xlabel("step")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def lost(curves, task, form, correction):
    """How much less of the held-out problems is right than with bf16 under the same correction."""
    runs, base = (group(curves, task=task, format=which, correction=correction) for which in (form, "bf16"))
    return statistics.mean(r["held_out"] for r in base) - statistics.mean(r["held_out"] for r in runs) if runs and base else None


def prediction_figure(replays, curves, path):
    """What one captured step says, and what the whole runs then lost."""
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for result in replays:
        for title, marker in zip(TRAINED, "osv^"):
            loss = lost(curves, result["task"], result["format"], title)
            effect = result["methods"].get(title)
            if loss is None or effect is None or result["format"] == "bf16":
                continue
            colour = COLOURS[list(FORMATS).index(result["format"])]
            fill = "full" if result["task"] == "demo" else "none"
            axes[0].plot(result["sequence_ess"], loss, marker, color=colour, fillstyle=fill)
            axes[1].plot(max(effect["bias"], 1e-3), loss, marker, color=colour, fillstyle=fill)
    for form in list(FORMATS)[1:]:
        axes[1].plot([], [], "-", color=COLOURS[list(FORMATS).index(form)], label=form)
    for title, marker in zip(TRAINED, "osv^"):
        axes[1].plot([], [], marker, color="#555555", label=title)
    axes[0].set(xlabel="effective sample size of completions", ylabel="held-out share lost against bf16")
    axes[1].set(xscale="log", xlabel="bias of the gradient")
    for axis in axes:
        axis.axhline(0, color="#999999", linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].legend(fontsize=7, frameon=False)
    figure.suptitle("On one captured step (filled: products, hollow: sums)", fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write(replays, curves, times, best, out, docs):
    """Writes quantised.md and figures into `out`; with `docs` into docs/research too."""
    parts = {"learning": (lambda task: learning(curves, best, task)), "mismatch": (lambda task: mismatch(curves, task)),
             "predicted": (lambda task: predicted(replays, best, task)), "speed": (lambda task: speed(times, curves, best, task))}
    texts = {name: "\n\n".join(f"**{TASK_TITLES[task][0].upper() + TASK_TITLES[task][1:]}**\n\n{made}" for task in TASKS if (made := part(task)))
             + "\n" for name, part in parts.items()}
    (out / "quantised.md").write_text("\n".join(texts.values()), encoding="utf-8")
    if curves:
        curves_figure(curves, best, out / "quantised_curves.svg")
        prediction_figure(replays, curves, out / "quantised_prediction.svg")
    if not docs:
        return
    for name, text in texts.items():
        if text.strip():
            put(PAGE, name, text)
    for name, title in (("curves", "Learning curves of every number format under every correction"),
                        ("prediction", "Effective sample size and bias of the gradient on one captured step, and what the runs lost")):
        (FIGURES / f"quantised_{name}.svg").write_bytes((out / f"quantised_{name}.svg").read_bytes())
        put(PAGE, name, f"![{title}](../figures/quantised_{name}.svg)\n")
