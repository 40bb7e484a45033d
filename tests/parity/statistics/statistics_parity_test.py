"""Drift metrics, intervals, quantiles and tails compared with numpy and scipy."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from scipy import stats

DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "statistics_driver"


def ours(request):
    done = subprocess.run([DRIVER], input=json.dumps(request) + "\n", capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed, clusters", [(1, 200), (2, 40), (3, 12)])
def test_bounds_are_those_of_scipys_bca_at_levels_widened_as_for_a_t_interval(seed, clusters):
    rng = np.random.default_rng(seed)
    size = 1 + rng.poisson(20, clusters)
    total = rng.lognormal(0, 1, clusters) * size
    width = np.sqrt(clusters / (clusters - 1)) * stats.t.ppf(0.975, clusters - 1)
    level = 1 - 2 * stats.norm.sf(width)
    theirs = stats.bootstrap((total, size), lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), paired=True,
                             n_resamples=40000, confidence_level=level, method="BCa",
                             rng=np.random.default_rng(0))
    mine = ours({"kind": "bootstrap", "clusters": np.stack([total, size], 1).tolist(), "replicates": 40000})
    spread = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert mine["value"] == pytest.approx(total.sum() / size.sum(), rel=1e-12)
    # Two sets of 40 000 samples: bounds differ by the noise of a 2.5 % quantile, which is larger with 12 clusters.
    tolerance = 0.02 if clusters > 20 else 0.05
    assert mine["low"] == pytest.approx(theirs.confidence_interval.low, abs=tolerance * spread)
    assert mine["high"] == pytest.approx(theirs.confidence_interval.high, abs=tolerance * spread)
    assert mine["standard_error"] == pytest.approx(
        theirs.standard_error * np.sqrt(clusters / (clusters - 1)), rel=0.03)


@pytest.mark.parametrize("shape", [0.1, 0.4, 0.9, 1.5])
def test_tail_index_finds_the_shape_of_pareto_tails_as_scipys_maximum_likelihood_does(shape):
    rng = np.random.default_rng(17)
    weights = np.sort(stats.genpareto.rvs(shape, size=40000, random_state=rng) + 1)
    tail = weights[-600:] - weights[-601]  # ceil(min(N / 5, 3 sqrt N))
    theirs, _, _ = stats.genpareto.fit(tail, floc=0)
    mine = ours({"kind": "pareto", "weights": weights.tolist()})
    # Ours is a posterior mean with ten pseudo-observations at 0.5.
    assert mine == pytest.approx((600 * theirs + 5) / 610, abs=0.03)
    assert mine == pytest.approx(shape, abs=0.15)


def test_tail_index_is_null_without_a_tail():
    assert ours({"kind": "pareto", "weights": [1.0] * 500}) is None
    assert ours({"kind": "pareto", "weights": [1.0, 2.0, 3.0]}) is None


def test_sketch_quantiles_are_numpys_lower_ones_to_half_a_percent():
    rng = np.random.default_rng(5)
    values = np.abs(rng.standard_t(2, 30000)) * 1e-3
    q = [0, 0.01, 0.5, 0.9, 0.99, 0.999, 1]
    mine = ours({"kind": "sketch", "values": values.tolist(), "q": q})
    np.testing.assert_allclose(mine, np.quantile(values, q, method="lower"), rtol=0.00501)


def test_every_drift_number_is_its_formula_in_numpy():
    rng = np.random.default_rng(3)
    length = rng.integers(3, 40, 24)
    sequence = np.repeat(np.arange(24), length)
    tokens = len(sequence)
    mu = np.log(rng.uniform(0.01, 0.99, tokens)).astype(np.float32)
    pi = (mu + rng.normal(0, 0.05, tokens)).clip(None, -1e-4).astype(np.float32)
    entropy = rng.uniform(0.1, 2, tokens).astype(np.float32)
    moment = (entropy**2 + rng.uniform(0.1, 1, tokens)).astype(np.float32)
    advantage = rng.normal(0, 1, 24).astype(np.float32)[sequence]
    mine = ours({"kind": "drift", "behaviour": mu.tolist(), "proximal": pi.tolist(),
                 "entropies": entropy.tolist(), "second_moments": moment.tolist(),
                 "advantages": advantage.tolist(), "sequence": sequence.tolist(),
                 "group": (np.arange(24) // 4).tolist(), "length": length.tolist()})
    mu, pi, entropy, moment = (x.astype(np.float64) for x in (mu, pi, entropy, moment))
    d = pi - mu
    w = np.exp(d)
    by_sequence = [d[sequence == s] for s in range(24)]
    product = np.array([np.exp(x.sum()) for x in by_sequence])
    p, q = np.exp(pi), np.exp(mu)
    expected = {
        "num_tokens": tokens, "num_nonfinite": 0, "mean_delta": d.mean(), "k1": -d.mean(),
        "k2": (d**2 / 2).mean(), "k3": (w - 1 - d).mean(), "reverse_kl": (w * d).mean(),
        "chi2": (w**2).mean() - 1, "ess_fraction": w.sum()**2 / (tokens * (w**2).sum()),
        "mean_w": w.mean(), "mean_w_stderr": w.std(ddof=1) / np.sqrt(tokens),
        "mean_w_z": (w.mean() - 1) / (w.std(ddof=1) / np.sqrt(tokens)),
        "mean_abs_delta": np.abs(d).mean(), "max_abs_delta": np.abs(d).max(),
        "mean_exp_abs_delta": np.exp(np.abs(d)).mean(), "share_above_1e6": (np.abs(d) > 1e-6).mean(),
        "pearson_probability": np.corrcoef(p, q)[0, 1],
        "mean_abs_probability_difference": np.abs(p - q).mean(),
        "max_abs_probability_difference": np.abs(p - q).max(),
        "sequence_log_ratio_sum_mean": np.mean([x.sum() for x in by_sequence]),
        "sequence_log_ratio_mean_mean": np.mean([x.mean() for x in by_sequence]),
        "sequence_log_ratio_max": max(abs(x.sum()) for x in by_sequence),
        "log_ppl_gap": -np.mean([x.mean() for x in by_sequence]),
        "sequence_mean_w": product.mean(), "sequence_chi2": (product**2).mean() - 1,
        "sequence_ess_fraction": product.sum()**2 / (24 * (product**2).sum()),
        "calibration_z": (-mu - entropy).sum() / np.sqrt((moment - entropy**2).sum()),
        "calibration_surprise": (-mu - entropy).mean(), "max_weight": w.max(),
        "positive_tokens": (advantage > 0).sum(), "negative_tokens": (advantage < 0).sum(),
        "positive_mean_w": w[advantage > 0].mean(), "negative_mean_w": w[advantage < 0].mean(),
        "positive_mean_delta": d[advantage > 0].mean(), "negative_mean_delta": d[advantage < 0].mean(),
    }
    for name, value in expected.items():
        assert mine.pop(name) == pytest.approx(value, rel=1e-9, abs=1e-12), name
    for name, quantile in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        want = np.quantile(np.abs(d), quantile, method="lower")
        assert mine.pop(f"abs_delta_{name}") == pytest.approx(want, rel=0.00501)
    assert set(mine) == {"pareto_k"}
