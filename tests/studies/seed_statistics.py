"""Means over seeds with bootstrap intervals. Pure."""
import itertools
import random

RESAMPLES = 10000


def interval(values, level=0.95):
    """(mean, low, high): percentile bootstrap over the seeds, exact where there are few enough resamples to list all.

    With three seeds there are 27 resamples, and the interval is from the worst to the best seed or nearly so: read it as that.
    """
    values = list(values)
    n = len(values)
    if n ** n <= RESAMPLES:
        means = sorted(sum(draw) / n for draw in itertools.product(values, repeat=n))
    else:
        draws = random.Random(1)
        means = sorted(sum(draws.choices(values, k=n)) / n for _ in range(RESAMPLES))
    tail = (1 - level) / 2
    last = len(means) - 1
    return sum(values) / n, means[round(tail * last)], means[round((1 - tail) * last)]


def at_tokens(curve, tokens, window=0.1):
    """Mean score of a curve's steps between (1 - window) x tokens and tokens; its last step where there is none."""
    inside = [score for at, score in curve if (1 - window) * tokens <= at <= tokens]
    return sum(inside) / len(inside) if inside else min(curve, key=lambda point: abs(point[0] - tokens))[1]


def common_tokens(curves):
    """The most tokens that every curve has reached."""
    return min(curve[-1][0] for curve in curves)


def binned(curve, tokens, bins=40):
    """Scores at `bins` equal amounts of tokens up to `tokens`."""
    return [at_tokens(curve, tokens * (i + 1) / bins, window=1 / (i + 1)) for i in range(bins)]
