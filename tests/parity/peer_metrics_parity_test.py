"""Drift metrics with the names of other systems compared with their formulas in numpy on padded batches, and the table of
docs/metrics.md compared with the names that the export writes."""
import json
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest

DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "statistics_driver"
DOCS = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "docs" / "metrics.md"
KINDS = {"off": "", "token_tis": "max_weight=1.5", "sequence_tis": "max_weight=1.5",
         **{f"{level}_{how}": "min_weight=0.8 correction.max_weight=1.5"
            for level in ("token", "sequence") for how in ("mask", "clip")}}


class Batch:
    """[B, L] arrays of log-probs with a mask, as in torch trainers."""

    def __init__(self, seed, completions=40, longest=30):
        rng = np.random.default_rng(seed)
        length = rng.integers(1, longest + 1, completions)
        self.mask = (np.arange(longest) < length[:, None]).astype(float)
        shape = self.mask.shape
        self.rollout = (-rng.exponential(0.8, shape)).astype(np.float32) * self.mask
        noise = (0.3 * rng.standard_t(4, shape)).astype(np.float32)
        self.trainer = np.minimum(self.rollout + noise, -1e-4).astype(np.float32) * self.mask
        self.ratio = self.trainer.astype(float) - self.rollout.astype(float)

    def masked_mean(self, values, axis=None):
        return (values * self.mask).sum(axis) / self.mask.sum(axis)

    def request(self, peer, kind, more="", one_update=True):
        rows, _ = np.nonzero(self.mask)
        pick = self.mask.astype(bool)
        zeros = [0.0] * int(self.mask.sum())
        settings = f"correction.kind={kind}" + (f" correction.{KINDS[kind]}" if KINDS[kind] else "")
        return {"kind": "peers", "peer": peer, "settings": settings + more, "one_update": one_update,
                "behaviour": self.rollout[pick].tolist(), "proximal": self.trainer[pick].tolist(),
                "entropies": zeros, "second_moments": zeros, "advantages": zeros, "sequence": rows.tolist(),
                "group": list(range(len(self.mask))), "length": self.mask.sum(1).astype(int).tolist()}


def bounds(kind):
    """(low or None, high) of KINDS."""
    return (0.8 if kind.endswith(("mask", "clip")) else None), 1.5


def ours(batch, peer, kind, more="", one_update=True):
    done = subprocess.run([DRIVER], input=json.dumps(batch.request(peer, kind, more, one_update)) + "\n",
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def verl_offpolicy_metrics(b):
    mean_trainer, mean_rollout = b.masked_mean(b.trainer, -1), b.masked_mean(b.rollout, -1)
    diff = mean_rollout - mean_trainer
    rho = np.exp(np.clip(b.ratio, -20, 20))
    product = np.exp(2 * np.clip((b.ratio * b.mask).sum(-1), -20, 20))
    return {"training_ppl": np.exp(-mean_trainer).mean(), "training_log_ppl": (-mean_trainer).mean(),
            "kl": b.masked_mean(-b.ratio), "k3_kl": b.masked_mean(np.exp(b.ratio) - b.ratio - 1),
            "rollout_ppl": np.exp(-mean_rollout).mean(), "rollout_log_ppl": (-mean_rollout).mean(),
            "log_ppl_diff": diff.mean(), "log_ppl_abs_diff": np.abs(diff).mean(), "log_ppl_diff_max": diff.max(),
            "log_ppl_diff_min": diff.min(), "ppl_ratio": np.exp(diff).mean(),
            "chi2_token": b.masked_mean(rho**2) - 1, "chi2_seq": product.mean() - 1}


def verl_is_metrics(b, kind, normalise):
    low, high = bounds(kind)
    icepop = kind.endswith("mask")
    log_sum = (b.ratio * b.mask).sum(-1, keepdims=True)
    log_ratio = log_sum if kind.startswith("sequence") else b.ratio
    raw = np.broadcast_to(np.exp(np.clip(log_ratio, -20, 20)), b.mask.shape) * b.mask
    applied = np.where((raw >= low) & (raw <= high), raw, 0) if icepop else np.minimum(raw, high)
    floor = low if icepop else 1 / high
    inside = b.mask.astype(bool)
    of_seq, raw_seq = b.masked_mean(applied, -1), b.masked_mean(raw, -1)
    if kind.startswith("sequence"):
        m = {"max": np.exp(min(log_sum.max(), 20)), "min": np.exp(log_sum.min()),
             "ratio_fraction_high": (log_sum > np.log(high)).mean(), "ratio_fraction_low": (log_sum < np.log(floor)).mean()}
    else:
        m = {"max": applied[inside].max(), "min": applied[inside].min(),
             "ratio_fraction_high": b.masked_mean(raw > high), "ratio_fraction_low": b.masked_mean(raw < floor)}
    mean = b.masked_mean(applied)
    m |= {"mean": mean, "std": np.sqrt(max(0, b.masked_mean(applied**2) - mean**2)),
          "eff_sample_size": 1 / b.masked_mean((applied / (mean + 1e-8))**2), "seq_mean": of_seq.mean(),
          "seq_std": of_seq.std(ddof=1), "seq_max": of_seq.max(), "seq_min": of_seq.min(),
          "seq_max_deviation": np.abs(of_seq - 1).max(), "seq_fraction_high": (raw_seq > high).mean(),
          "seq_fraction_low": (raw_seq < floor).mean()}
    if icepop:
        m["oob_ratio"] = b.masked_mean((raw < low) | (raw > high))
    if normalise:
        m["batch_norm_factor"] = of_seq.mean() if kind.startswith("sequence") else mean
    return {"rollout_is_" + name: value for name, value in m.items()}


def verl(b, kind, normalise=False):
    inside = b.mask.astype(bool)
    p, q = np.exp(b.trainer.astype(float))[inside], np.exp(b.rollout.astype(float))[inside]
    metrics = verl_offpolicy_metrics(b)
    if kind != "off" and not kind.endswith("clip"):
        metrics |= verl_is_metrics(b, kind, normalise)
    return {"training/rollout_probs_diff_max": np.abs(p - q).max(), "training/rollout_probs_diff_mean": np.abs(p - q).mean(),
            "training/rollout_probs_diff_std": np.abs(p - q).std(ddof=1),
            "training/rollout_actor_probs_pearson_corr": np.corrcoef(p, q)[0, 1],
            **{"rollout_corr/" + name: value for name, value in metrics.items()}}


def nemo_rl(b, kind):
    k3 = lambda a, c: np.exp(c - a) - (c - a) - 1
    mixture = np.log(0.5 * np.exp(b.trainer.astype(float)) + 0.5 * np.exp(b.rollout.astype(float)))
    weight = np.exp(b.ratio)
    metrics = {"token_mult_prob_error": b.masked_mean(np.exp(np.abs(b.ratio))),
               "gen_kl_error": b.masked_mean(k3(b.rollout.astype(float), b.trainer.astype(float))),
               "policy_kl_error": b.masked_mean(k3(b.trainer.astype(float), b.rollout.astype(float))),
               "js_divergence_error": b.masked_mean(0.5 * k3(mixture, b.trainer) + 0.5 * k3(mixture, b.rollout))}
    low, high = bounds(kind)
    low = low or 0
    if kind == "off":
        metrics["sampling_importance_ratio"] = b.masked_mean(weight)
    elif kind.startswith("token"):
        inside = (weight >= low) & (weight <= high)
        applied = np.where(inside, weight, 0) if kind.endswith("mask") else np.clip(weight, low, high)
        metrics |= {"sampling_importance_ratio": b.masked_mean(applied), "is_oob_ratio": b.masked_mean(~inside)}
    return {"train/" + name: value for name, value in metrics.items()}


def trl(b, kind):
    inside = b.mask.astype(bool)
    difference = np.abs(b.ratio)[inside]
    metrics = {"sampling_logp_difference/mean": difference.mean(), "sampling_logp_difference/max": difference.max()}
    if kind != "off":
        low, high = bounds(kind)
        ratio = np.exp((b.ratio * b.mask).sum(-1)) if kind.startswith("sequence") else np.exp(b.ratio)[inside]
        if kind.endswith("mask"):
            ratio[(ratio < low) | (ratio > high)] = 0
        else:
            ratio = np.clip(ratio, low, high)
        metrics |= {f"importance_sampling_ratio/{name}": getattr(ratio, name)() for name in ("min", "mean", "max")}
    return {"sampling/" + name: value for name, value in metrics.items()}


def prime_rl(b, kind):
    kl = (np.exp(b.ratio) - b.ratio - 1)[b.mask.astype(bool)]
    return {"mismatch_kl/all/mean": kl.mean(), "mismatch_kl/all/std": kl.std(ddof=1), "mismatch_kl/all/max": kl.max()}


THEIRS = {"verl": verl, "nemo_rl": nemo_rl, "trl": trl, "prime_rl": prime_rl}


@pytest.mark.parametrize("peer", THEIRS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_exported_number_is_what_their_formula_gives(peer, kind, seed):
    batch = Batch(seed)
    mine, theirs = ours(batch, peer, kind), THEIRS[peer](batch, kind)
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        assert mine[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("kind", ["token_tis", "sequence_mask"])
def test_verls_normalising_factor_is_of_tokens_or_of_completions(kind):
    batch = Batch(3)
    mine = ours(batch, "verl", kind, " correction.batch_normalise=true")
    assert mine == pytest.approx(verl(batch, kind, normalise=True), rel=1e-6, abs=1e-9)


def test_the_table_of_the_docs_names_what_is_exported_and_nothing_else():
    batch = Batch(4)
    exported = {name for peer in THEIRS for kind in KINDS
                for name in ours(batch, peer, kind, "" if kind == "off" else " correction.batch_normalise=true")}
    section = DOCS.read_text(encoding="utf-8").split("### Export")[1]
    rows = [line.split("|")[2] for line in section.splitlines() if re.match(r"\| (verl|NeMo-RL|TRL|prime-rl) ", line)]
    documented = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(documented) == sorted(exported)


def test_names_of_the_table_above_are_among_those_exported():
    text = DOCS.read_text(encoding="utf-8")
    table, section = text.split("## Names of other systems")[1].split("### Export")
    columns = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]
    assert len(columns) >= 10
    for row in columns:
        for cell, prefix in zip(row[1:5], ("rollout_corr/", "train/", "sampling/", "")):
            names = re.findall(r"`([^`]+)`", cell)
            for name in names:
                if name.startswith(("/", "_")):  # `x/mean`, `/max`: the second is the same name with another suffix
                    name = re.sub(r"(/|_)[a-z]+$", name, names[0])
                full = name if name.startswith("training/") else prefix + name
                assert f"`{full}`" in section, full
