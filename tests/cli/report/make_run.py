"""Writes a synthetic run directory (docs/run_directory.md) for tests and for a look at the report.

    python make_run.py OUT [--steps 24] [--seed 1] [--progress]

Numbers are random but consistent: delta, w and the drift metrics come from the same tokens. They are not results of a run.
One completion has text that looks like markup.
"""

import argparse
import json
import math
import pathlib
import random

HOSTILE = ["</", "script", "><", "img src=x onerror=", "document.title='broken'", ">", "&amp;", "<!--", "\u2028", " 42"]


def nine_digits(value):
    return float(f"{value:.9g}") if math.isfinite(value) else None


def quantile(sorted_values, q):
    return sorted_values[min(len(sorted_values) - 1, int(q * len(sorted_values)))]


def make_completion(rng, index, answer, skill, step, hostile):
    if hostile:
        tokens, right = list(HOSTILE), False
    elif rng.random() < skill:
        tokens, right = [*str(answer)[:2], "<|im_end|>"], True
    else:
        tokens, right = rng.choice([
            ["The", " product", " of", " the", " two", " numbers", " is", " ", *str(answer), ".", "\n", "Let", " me", " check"],
            [*str(answer + rng.randint(1, 9)), "<|im_end|>"],
            ["That", " is", " ", *str(answer), ".", "<|im_end|>"],
        ]), False
    behaviour, proximal, entropies = [], [], []
    for _ in tokens:
        logprob = -rng.expovariate(1.5)
        noise = rng.gauss(0, 0.02) * (1 + abs(logprob)) * (8 if rng.random() < 0.01 else 1)
        behaviour.append(nine_digits(logprob))
        proximal.append(nine_digits(logprob + noise))
        entropies.append(nine_digits(rng.random() * 1.4))
    truncated = tokens[-1] != "<|im_end|>"
    reward = 1.0 if right else 0.2 if not truncated and rng.random() < 0.5 else 0.0
    split = max(1, len(tokens) - 1) if step > 2 and index == 0 else len(tokens)
    spans = [[step - 1, split]] + ([[step, len(tokens) - split]] if split < len(tokens) else [])
    masked = truncated and index == 7
    return {
        "index": index, "text": "".join(t for t in tokens if t != "<|im_end|>"), "token_ids": list(range(1, len(tokens) + 1)),
        "tokens": tokens, "behaviour_logprobs": behaviour, "raw_logprobs": behaviour, "proximal_logprobs": proximal,
        "entropies": entropies, "versions": spans, "reward": reward, "advantage": 0.0, "masked": masked,
        "drop_reason": "truncated" if masked else "", "finish_reason": "length" if truncated else "stop",
    }


def make_group(rng, step, number, skill):
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    completions = [make_completion(rng, i, a * b, skill, step, number == 0 and i == 1) for i in range(8)]
    rewards = [c["reward"] for c in completions]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    for c in completions:
        c["advantage"] = nine_digits((c["reward"] - mean) / (std + 1e-4))
    return {
        "group_id": step * 8 + number, "prompt_index": number, "answer": str(a * b), "server": "127.0.0.1:50051",
        "prompt": f"<|im_start|>user\nWhat is {a} * {b}? Answer with just the number.<|im_end|>\n<|im_start|>assistant\n",
        "zero_variance": std == 0, "completions": completions,
    }


def drift_of(pairs):
    """pairs: (delta, entropy, behaviour, advantage) of every trained token."""
    deltas = [p[0] for p in pairs]
    count = len(deltas)
    weights = [math.exp(d) for d in deltas]
    mean = lambda values: sum(values) / max(1, len(values))
    mean_w = mean(weights)
    size = sorted(abs(d) for d in deltas)
    positive = [p for p in pairs if p[3] > 0]
    negative = [p for p in pairs if p[3] < 0]
    return {
        "mean_delta": mean(deltas), "k1": -mean(deltas), "k2": mean([d * d / 2 for d in deltas]),
        "k3": mean([w - 1 - d for w, d in zip(weights, deltas)]), "reverse_kl": mean([w * d for w, d in zip(weights, deltas)]),
        "chi2": mean([w * w for w in weights]) - 1, "ess_fraction": sum(weights) ** 2 / (count * sum(w * w for w in weights)),
        "mean_w": mean_w, "mean_w_stderr": math.sqrt(mean([(w - mean_w) ** 2 for w in weights]) / count),
        "mean_abs_delta": mean(size), "max_abs_delta": size[-1], "mean_exp_abs_delta": mean([math.exp(s) for s in size]),
        "abs_delta_p50": quantile(size, .5), "abs_delta_p90": quantile(size, .9), "abs_delta_p99": quantile(size, .99),
        "abs_delta_p999": quantile(size, .999), "share_above_1e6": mean([s > 1e-6 for s in size]), "pearson_probability": 0.999,
        "mean_abs_probability_difference": 0.004, "max_abs_probability_difference": 0.06, "sequence_log_ratio_sum_mean": 5 * mean(deltas),
        "sequence_log_ratio_mean_mean": mean(deltas), "sequence_log_ratio_max": 3 * size[-1], "log_ppl_gap": -mean(deltas),
        "calibration_z": mean([-p[2] - 0.66 for p in pairs]) * 2, "positive_mean_w": mean([math.exp(p[0]) for p in positive]),
        "negative_mean_w": mean([math.exp(p[0]) for p in negative]), "positive_mean_delta": mean([p[0] for p in positive]),
        "negative_mean_delta": mean([p[0] for p in negative]), "positive_tokens": len(positive), "negative_tokens": len(negative),
    }, weights


def histogram(weights):
    counts = [0] * 20
    for w in weights:
        counts[min(19, int(w / 0.2))] += 1
    return counts


def interval(value, width=.2):
    """[value, low, high] with nine digits."""
    return [nine_digits(value), nine_digits(value - width * abs(value)), nine_digits(value + width * abs(value))]


def with_bounds(name, value, width=.2):
    return dict(zip((name, name + "_low", name + "_high"), interval(value, width)))


def splits_of(step, drift, tokens):
    """drift/by_* of a step. The counts of the buckets rise and add up to the number of tokens."""
    def buckets(labels):
        return {label: {"tokens": tokens // len(labels), "mean_delta": interval(drift["mean_delta"] * (1 + i)),
                        "mean_abs_delta": interval(drift["mean_abs_delta"] * (1 + i)), "k3": interval(drift["k3"] * (1 + i)),
                        "mean_w": interval(drift["mean_w"], .01)} for i, label in enumerate(labels)}
    return {"drift/by_version_lag": buckets(["0", "1", "3-4"] if step > 2 else ["0"]), "drift/by_entropy": buckets(["0-0.01", "0.01-0.1", "0.1-0.5"]),
            "drift/by_place": buckets(["first", "between", "last"]), "drift/by_advantage_sign": buckets(["positive", "negative", "zero"])}


def measured_now_and_then(step, drift):
    """Metrics of the split, the probe set and delivery in steps that measure them (docs/metrics.md)."""
    numbers = {}
    if step % 2 == 0:
        for part, share in (("record", 0), ("engine", .3), ("cast", .6), ("staleness", .1)):
            numbers.update(with_bounds(f"drift/split/{part}_square_share", share))
            numbers.update(with_bounds(f"drift/split/{part}_mean", share * drift["mean_delta"]))
            numbers.update(with_bounds(f"drift/split/{part}_mean_abs", share * drift["mean_abs_delta"]))
    for name in ("k3", "mean_abs_delta"):
        numbers.update(with_bounds("drift/probe/" + name, drift[name] * .7))
        numbers.update(with_bounds("drift/visitation/" + name, drift[name] * .3, 1.5))
    numbers.update(with_bounds("drift/delivery/undelivered", 1e-4, 2))
    numbers.update(with_bounds("drift/delivery/late", 2e-4, 2))
    return numbers


def metrics_line(rng, step, groups, time_s):
    completions = [c for g in groups for c in g["completions"]]
    trained = [c for c in completions if not c["masked"]]
    pairs = [(p - b, e, b, c["advantage"]) for c in trained
             for p, b, e in zip(c["proximal_logprobs"], c["behaviour_logprobs"], c["entropies"])]
    drift, weights = drift_of(pairs)
    rewards = [c["reward"] for c in completions]
    mean = sum(rewards) / len(rewards)
    lengths = [len(c["tokens"]) for c in completions]
    capped = [min(2.0, w) for w in weights]
    line = {
        "step": step, "time_s": time_s, "reward/mean": mean, "reward/std": math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards)),
        "reward/pass_at_k": sum(any(c["reward"] >= 1 for c in g["completions"]) for g in groups) / len(groups),
        "reward/group_std_mean": 0.3 * (1 - mean) + 0.02, "reward/zero_variance_share": sum(g["zero_variance"] for g in groups) / len(groups),
        "advantage/mean": 0.0, "advantage/var": 0.9, "length/mean": sum(lengths) / len(lengths), "length/min": min(lengths),
        "length/max": max(lengths), "length/truncated_share": sum(c["finish_reason"] == "length" for c in completions) / len(completions),
        **{"drift/" + k: nine_digits(v) for k, v in drift.items()},
        **{key: value for name in ("k3", "mean_abs_delta", "ess_fraction", "positive_mean_w", "negative_mean_w")
           for key, value in with_bounds("drift/" + name, drift[name], .01 if "w" in name or "ess" in name else .2).items()},
        **splits_of(step, drift, len(pairs)), **measured_now_and_then(step, drift),
        "correction/positive_kept_fraction": 1.0, "correction/negative_kept_fraction": nine_digits(1 - .01 * rng.random()),
        "correction/mean_weight": sum(capped) / len(capped), "correction/max_weight": max(capped),
        "correction/mean_weight_raw": sum(weights) / len(weights), "correction/capped_share": sum(w > 2 for w in weights) / len(weights),
        "correction/rejected_tokens": 0, "correction/hist_raw": histogram(weights), "correction/hist_truncated": histogram(capped),
        "loss/policy": nine_digits(rng.gauss(0, .01)), "loss/kl": 0.0, "loss/total": nine_digits(rng.gauss(0, .01)), "loss/ratio_mean": 1.0,
        "loss/ratio_max": 1.0, "loss/clip_low_share": 0.0, "loss/clip_high_share": 0.0, "loss/dual_clip_share": 0.0,
        "loss/entropy": nine_digits(0.9 * math.exp(-step / 14) + 0.1), "loss/denominator": 1024, "loss/num_tokens": len(pairs), "loss/num_updates": 1,
        "optimizer/learning_rate": 1e-5, "optimizer/grad_norm": nine_digits(2.5 + rng.random()), "optimizer/grad_clipped": 1, "optimizer/skipped_updates": 0,
        "push/version": step, "push/bytes": 269031424, "push/seconds": nine_digits(0.6 + 0.1 * rng.random()), "push/pause_ms": nine_digits(1 + rng.random()),
        "push/changed_share": nine_digits(0.03 + 0.01 * rng.random()), "push/lost_norm": nine_digits(0.05 + 0.01 * rng.random()), "push/update_norm": 0.11, "push/arrived_share": nine_digits(1 + 0.001 * rng.random()),
        "staleness/mean": 0.1, "staleness/max": 1 if step > 2 else 0, "staleness/histogram": {"0": len(pairs) - 7, "1": 7} if step > 2 else {"0": len(pairs)},
        "time/rollout": 2.1, "time/reward": 0.01, "time/pack": 0.02, "time/proximal": 0.0, "time/update": nine_digits(4.2 + rng.random() * .5),
        "time/push": 0.65, "time/checkpoint": 0.9 if step % 8 == 0 else 0.0, "time/eval": 1.4 if step % 4 == 0 else 0.0, "time/step": 7.3,
        "throughput/sampled_tokens_per_s": nine_digits(310 + 20 * rng.random()), "throughput/trained_tokens_per_s": nine_digits(150 + 9 * rng.random()),
        "drops/truncated": sum(c["masked"] for c in completions), "drops/stale": 0,
    }
    return line


def write_lines(path, rows, tail=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--progress", action="store_true", help="no end event, torn last lines, one malformed line")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    out = args.out
    (out / "rollouts").mkdir(parents=True, exist_ok=True)
    digest = lambda: f"{rng.getrandbits(128):032x}"
    (out / "run.json").write_text(json.dumps({
        "schema": 1, "run_id": "synthetic-1", "started_at": "2026-01-01T00:00:00Z", "seed": args.seed, "deterministic": False,
        "model": {"path": "models/synthetic", "type": "llama", "source": "made up for this page", "num_parameters": 134515008, "tokenizer_hash": digest()},
        "trainer": {"dtype": "fp32", "numerics": "exact", "instruction_set": "avx512", "threads": 2},
        "servers": [{"address": "127.0.0.1:50051", "dtype": "bf16", "numerics": "invariant", "instruction_set": "avx2",
                     "in_flight": "keep", "version": 0, "weight_digest": digest()}],
        "versions": {"tandem": "0.1.0", "libtorch": "2.11.0", "grpc": "1.51.1"}, "hardware": {"cpu": "synthetic", "cores": 2, "memory_gib": 15.6},
        "task": {"num_train_prompts": 61, "num_eval_prompts": 20}}))
    (out / "config.yaml").write_text("seed: 1\ntrainer:\n  optimizer:\n    learning_rate: 1.0e-05\n")
    metrics = [{"step": 0, "time_s": 1.2, "eval/greedy": 0.5, "eval/greedy_share_correct": 0.5, "eval/num_prompts": 20}]
    events = [{"time_s": 0.0, "step": 0, "kind": "run_started", "message": "run synthetic-1 started"},
              {"time_s": 0.4, "step": 0, "kind": "server_ready", "message": "127.0.0.1:50051 serves bf16, version 0"}]
    for step in range(1, args.steps + 1):
        skill = 0.05 + 0.9 * (1 - math.exp(-step / 7))
        groups = [make_group(rng, step, i, skill) for i in range(8)]
        time_s = 1.2 + 7.3 * step
        line = metrics_line(rng, step, groups, time_s)
        if step % 4 == 0:
            line.update({"eval/greedy": min(1.0, 0.5 + 0.02 * step), "eval/greedy_share_correct": min(1.0, 0.5 + 0.02 * step), "eval/num_prompts": 20})
        metrics.append(line)
        write_lines(out / "rollouts" / f"step_{step}.jsonl", groups)
        events.append({"time_s": time_s, "step": step, "kind": "push_committed", "message": f"version {step} is live", "version": step,
                       "server": "127.0.0.1:50051", "digest": digest(), "bytes": 269031424, "changed_share": line["push/changed_share"], "lost_norm": line["push/lost_norm"], "arrived_share": line["push/arrived_share"]})
    events.insert(12, {"time_s": 70.1, "step": 9, "kind": "alert", "name": "reward_std_near_zero", "message": "reward std 0.01 at step 9", "value": 0.01, "threshold": 0.02,
                       "diagnosis": "Nearly all completions score alike: look at the prompts' difficulty and at the reward, then at temperature."})
    events.insert(14, {"time_s": 71.0, "step": 9, "kind": "group_dropped", "message": "group 77 dropped", "group_id": 77, "reason": "stale"})
    tail = ""
    if args.progress:
        tail = '{"step": 999, "rew'
    else:
        events.append({"time_s": 1.2 + 7.3 * args.steps, "step": args.steps, "kind": "run_finished", "message": f"{args.steps} steps"})
    for step in (4, 8):
        (out / "captures" / f"step_{step}").mkdir(parents=True, exist_ok=True)
        (out / "captures" / f"step_{step}" / "manifest.json").write_text("{}")
    (out / "captures" / "step_4" / "attribution.html").write_text("<!DOCTYPE html>")
    write_lines(out / "metrics.jsonl", metrics, tail)
    write_lines(out / "events.jsonl", events, tail)
    if args.progress:
        with (out / "events.jsonl").open("r+") as file:
            lines = file.readlines()
            lines[3] = "not json\n"
            file.seek(0)
            file.writelines(lines)
            file.truncate()


if __name__ == "__main__":
    main()
