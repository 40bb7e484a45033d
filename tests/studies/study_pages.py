"""Tables and figures of the study of algorithms, from its results, and their places in docs/research."""
import collections
import math
import re
import textwrap

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tandem", "font.size": 9})
from matplotlib import pyplot  # noqa: E402

from seed_statistics import at_tokens, binned, common_tokens, interval
from study_reward_models import VARIANTS
from study_runs import ALGORITHMS, GAP_TITLES, ROOT, TASK_TITLES, TASKS, TITLES

COLOURS = ["#000000", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999999", "#117733"]
PAGES, FIGURES = ROOT / "docs" / "research", ROOT / "docs" / "figures"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows])


def shown(values):
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "-"
    mean, low, high = interval(values)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def by_algorithm(results, **wanted):
    """algorithm -> its results of all seeds, in the order of ALGORITHMS."""
    groups = collections.defaultdict(list)
    for result in results:
        if all(result[key] == value for key, value in wanted.items()):
            groups[result["algorithm"]].append(result)
    return {name: groups[name] for name in ALGORITHMS if groups[name]}


def comparison(results, task):
    """The table of a task without a gap."""
    groups = by_algorithm(results, task=task, gap="none", corrected=True)
    if not groups:
        return ""
    budget = common_tokens([result["curve"] for group in groups.values() for result in group])
    half = budget / 2
    rows = [[TITLES[name], *(shown([r["held_out"][how] for r in group]) for how in ("sampled", "greedy")), shown([at_tokens(r["curve"], budget) for r in group]),
             shown([at_tokens(r["curve"], half) for r in group]), f"{sum(r['curve'][-1][0] for r in group) / len(group):,.0f}",
             f"{sum(r['seconds'] for r in group) / len(group):.0f}"] for name, group in groups.items()]
    head = ["algorithm", "held out, sampled", "held out, greedy", f"training, at {budget:,} tokens", f"at {half:,.0f}", "tokens of a run", "seconds"]
    return f"**{TASK_TITLES[task].capitalize()}**, {max(map(len, groups.values()))} seeds.\n\n" + table(head, rows) + "\n"


def learning_curves(results, path):
    figure, axes = pyplot.subplots(1, len(TASKS), figsize=(9, 3.6), layout="constrained", sharey=True)
    for axis, task in zip(axes, TASKS):
        groups = by_algorithm(results, task=task, gap="none", corrected=True)
        if not groups:
            continue
        budget = common_tokens([result["curve"] for group in groups.values() for result in group])
        for name, group in groups.items():
            colour = COLOURS[list(ALGORITHMS).index(name)]
            curves = [binned(result["curve"], budget) for result in group]
            points = [interval(values) for values in zip(*curves)]
            at = [budget * (i + 1) / len(points) for i in range(len(points))]
            axis.plot(at, [mean for mean, _, _ in points], color=colour, linewidth=1.3, label=TITLES[name])
            axis.fill_between(at, [low for _, low, _ in points], [high for _, _, high in points], color=colour, alpha=0.12, linewidth=0)
        axis.set(title=TASK_TITLES[task], xlabel="sampled tokens", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of right completions")
    axes[-1].legend(fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def mismatch(results, task):
    """The tables of a task under each gap, corrected and not: held-out score, and how large the gap was."""
    rows, sizes = [], []
    gaps = list(GAP_TITLES)
    for name, healthy in by_algorithm(results, task=task, gap="healthy", corrected=True).items():
        row, size = [TITLES[name], shown([r["held_out"]["sampled"] for r in healthy])], [TITLES[name]]
        for gap in gaps:
            for corrected in (False, True):
                group = by_algorithm(results, task=task, gap=gap, corrected=corrected, algorithm=name).get(name)
                row.append(shown([r["held_out"]["sampled"] for r in group]) if group else "-")
                size.append(f"{1000 * sum(r['drift']['drift/k3'] for r in group) / len(group):.1f}" if group else "-")
        rows.append(row)
        sizes.append(size)
    columns = [f"{gap}, {how}" for gap in gaps for how in ("not corrected", "corrected")]
    named = "; ".join(f"{gap}: {title}" for gap, title in GAP_TITLES.items())
    return (f"**{TASK_TITLES[task].capitalize()}**, share of right completions on held-out problems, sampled by a healthy engine. {named}.\n\n"
            + table(["algorithm", "no gap"] + columns, rows) + "\n\nThe size of the gap: k3 of the tokens trained on, mean over the run, in 0.001 nats.\n\n"
            + table(["algorithm"] + columns, sizes) + "\n")


def preferences(rows):
    """The table of losses of pairs; `rows`: results of study_preferences.py."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["loss"]].append(row)
    body = []
    for loss, group in groups.items():
        ours, theirs = ([row[side] for row in group if row.get(side)] for side in ("tandem", "trl"))
        body.append([loss] + [shown([x[key] for x in side]) if side else "-" for key in ("score", "accuracy") for side in (ours, theirs)]
                    + [f"{sum(x[key] for x in side) / len(side):.1f}" if side else "-" for key in ("seconds", "loop_seconds") for side in (ours, theirs)])
    head = ["loss", "score, Tandem", "score, TRL", "pair accuracy, Tandem", "pair accuracy, TRL", "seconds, Tandem", "seconds, TRL",
            "updates alone, Tandem", "updates alone, TRL"]
    return table(head, body) + "\n"


def learned_rewards(results):
    """The table of policies that were trained on a learned reward; `results` of study_reward_models.py."""
    rows = []
    for variant, (title, _, _) in VARIANTS.items():
        group = [result for result in results if result["variant"] == variant]
        if group:
            rows.append([title, *(shown([r[key] for r in group]) for key in ("accuracy", "last_proxy", "best_gold", "last_gold")),
                         shown([r["held_out"]["sampled"] for r in group]), shown([r["alpha"] for r in group]), shown([r["beta"] for r in group])])
    head = ["reward", "accuracy on held-out pairs", "gain of the proxy", "best gold", "gold at the end", "held out, sampled", "alpha", "beta"]
    return table(head, rows) + "\n"


def by_distance(points, bins):
    """Means of points (x, y, ..) in `bins` parts of as many points each, by x."""
    points = sorted(points)
    edges = [round(i * len(points) / bins) for i in range(bins + 1)]
    parts = [points[low:high] for low, high in zip(edges, edges[1:]) if high > low]
    return [[sum(values) / len(values) for values in zip(*part)] for part in parts]


def overoptimisation(results, path):
    """Proxy and gold by the distance from the start, a panel for each kind of reward: dots are steps, lines means of many of all seeds."""
    figure, axes = pyplot.subplots(1, len(VARIANTS), figsize=(9, 3.2), layout="constrained", sharex=True, sharey="row")
    for axis, (variant, (title, _, _)) in zip(axes, VARIANTS.items()):
        group = [result["curve"] for result in results if result["variant"] == variant]
        points = [(d, proxy - curve[0][1], gold) for curve in group for d, proxy, gold in curve]
        if not points:
            continue
        means = by_distance(points, max(2, min(10, len(points) // 8)))
        gain = axis.twinx()
        for where, column, colour, name in ((axis, 2, COLOURS[3], "gold: share of right completions"), (gain, 1, COLOURS[1], "gain of the proxy")):
            where.plot([point[0] for point in points], [point[column] for point in points], ".", color=colour, alpha=0.15, markersize=3)
            where.plot([mean[0] for mean in means], [mean[column] for mean in means], color=colour, linewidth=1.5, label=name)
        axis.set_title("\n".join(textwrap.wrap(title, 36)), fontsize=8)
        axis.set(xlabel="sqrt(KL from the start), nats", ylim=(0, 1.02))
        gain.set_ylim(-3, 3)
        gain.tick_params(labelright=axis is axes[-1])
        axis.grid(alpha=0.3)
        axis.spines["top"].set_visible(False)
        gain.spines["top"].set_visible(False)
        if axis is axes[0]:
            lines = axis.get_lines()[1:] + gain.get_lines()[1:]
            axis.legend(lines, [line.get_label() for line in lines], fontsize=7, frameon=False, loc="lower left")
    axes[0].set_ylabel("gold")
    gain.set_ylabel("gain of the proxy")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def put(page, name, text):
    """Replaces what stands between <!-- study: NAME --> and <!-- end --> of a page."""
    marked = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- study: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(marked):
        raise RuntimeError(f"{page} has no place for {name}: <!-- study: {name} --> .. <!-- end -->")
    page.write_text(pattern.sub(lambda found: found[1] + "\n" + text + "\n" + found[2], marked), encoding="utf-8")


def write(results, preference_rows, learned, out, docs):
    """Writes tables.md and curves.svg into `out`; with `docs` into the pages of docs/research too."""
    tables = "\n".join(filter(None, (comparison(results, task) for task in TASKS)))
    gaps = "\n".join(mismatch(results, task) for task in TASKS if any(r["task"] == task and r["gap"] == "healthy" for r in results))
    of_pairs = preferences(preference_rows) if preference_rows else ""
    of_rewards = learned_rewards(learned) if learned else ""
    (out / "tables.md").write_text("\n".join(filter(None, (tables, of_pairs, of_rewards, gaps))), encoding="utf-8")
    if tables:
        learning_curves(results, out / "curves.svg")
    if learned:
        overoptimisation(learned, out / "overoptimisation.svg")
    if not docs:
        return
    if tables:
        put(PAGES / "algorithms.md", "comparison", tables)
        figure = FIGURES / "algorithm_curves.svg"
        figure.write_bytes((out / "curves.svg").read_bytes())
        put(PAGES / "algorithms.md", "curves", "![Learning curves of all algorithms on both tasks](../figures/algorithm_curves.svg)\n")
    if of_pairs:
        put(PAGES / "algorithms.md", "preferences", of_pairs)
    if of_rewards:
        (FIGURES / "overoptimisation.svg").write_bytes((out / "overoptimisation.svg").read_bytes())
        put(PAGES / "algorithms.md", "rewards", of_rewards + "\n![Proxy and gold by the distance from the start](../figures/overoptimisation.svg)\n")
    if gaps:
        put(PAGES / "algorithms_under_mismatch.md", "gaps", gaps)
