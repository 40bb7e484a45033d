"""Makes a small run directory for the notebook read_a_run.ipynb: metrics of 30 steps, the capture of the last one and its texts,
in the form that a real run has (docs/run_directory.md). The numbers are made up; no model was run for it.

    python python/examples/make_example_run.py DIRECTORY
"""
import json
import pathlib
import sys

import numpy as np

STEPS, GROUPS, COMPLETIONS = 30, 4, 6
WORDS = [" the", " answer", " is", " so", " we", " add", " and", " get", ".", " 1", " 2", " 3", " 5", " 8", " 13", "<|im_end|>"]
PROMPT = [3, 4, 5, 9, 6, 10]  # places in WORDS


def metrics(rng):
    for step in range(STEPS + 1):
        line = {"step": step, "time_s": round(2.5 * step, 3)}
        if step % 10 == 0:
            line.update({"eval/greedy": round(0.2 + 0.02 * step, 4), "eval/num_prompts": 20})
        if step > 0:
            reward, drift = 0.15 + 0.6 * (1 - np.exp(-step / 12)) + 0.03 * rng.standard_normal(), 0.004 * np.exp(0.2 * rng.standard_normal())
            line.update({"reward/mean": reward, "reward/std": 0.3, "drift/mean_abs_delta": drift,
                         "drift/mean_abs_delta_low": 0.85 * drift, "drift/mean_abs_delta_high": 1.2 * drift,
                         "drift/k3": 8 * drift**2, "drift/k3_low": 5 * drift**2, "drift/k3_high": 14 * drift**2,
                         "drift/chi2": None, "staleness/histogram": {"0": 300},
                         "throughput/sampled_tokens_per_s": 900 + 40 * rng.standard_normal(),
                         "throughput/trained_tokens_per_s": 1400 + 60 * rng.standard_normal()})
        yield {name: round(value, 9) if isinstance(value, float) else value for name, value in line.items()}


def completions(rng):
    """(group, index, token ids, log-probs of both sides) of each completion: one token in 40 is far off."""
    for group in range(GROUPS):
        for index in range(COMPLETIONS):
            ids = [*rng.integers(0, len(WORDS) - 1, rng.integers(8, 20)), len(WORDS) - 1]
            behaviour = -rng.exponential(0.8, len(ids))
            noise = 0.004 * rng.standard_normal(len(ids)) + np.where(rng.random(len(ids)) < 1 / 40, 0.3, 0)
            yield group, index, [int(one) for one in ids], behaviour, np.minimum(behaviour + noise, 0)


def tensors(rows):
    """The columns that every capture has."""
    lengths = [len(ids) for _, _, ids, _, _ in rows]
    count = sum(lengths)
    per_token = {"behaviour_logprobs": np.concatenate([row[3] for row in rows]), "proximal_logprobs": np.concatenate([row[4] for row in rows])}
    per_token["raw_logprobs"] = per_token["behaviour_logprobs"]
    return {"group_id": np.arange(GROUPS, dtype=np.int64) + 100, "prompt_ids": np.array(PROMPT * GROUPS, np.int32),
            "prompt_offsets": np.arange(GROUPS + 1, dtype=np.int64) * len(PROMPT),
            "group": np.array([row[0] for row in rows], np.int32), "completion_index": np.array([row[1] for row in rows], np.int32),
            "token_offsets": np.cumsum([0, *lengths], dtype=np.int64), "reward": np.array([row[1] % 2 for row in rows], np.float64),
            "masked": np.zeros(len(rows), np.uint8), "finish": np.ones(len(rows), np.uint8),
            "token_ids": np.concatenate([row[2] for row in rows]).astype(np.int32), "weight_version": np.full(count, STEPS - 1, np.int64),
            "entropies": np.ones(count, np.float32), "advantages": np.zeros(count, np.float32),
            **{name: values.astype(np.float32) for name, values in per_token.items()}}


def as_safetensors(columns):
    header, at = {}, 0
    for name, values in columns.items():
        kind = {"f": "F", "i": "I", "u": "U"}[values.dtype.kind] + str(8 * values.dtype.itemsize)
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in columns.values())


def digest_of(data):
    """Only where xxhash is installed, as a reader checks it only there."""
    try:
        import xxhash
    except ImportError:
        return ""
    return xxhash.xxh3_128_hexdigest(data)


def texts(rows):
    for group in range(GROUPS):
        yield {"group_id": 100 + group, "prompt": "".join(WORDS[one] for one in PROMPT), "completions": [
            {"index": index, "tokens": [WORDS[one] for one in ids], "token_ids": ids} for of, index, ids, _, _ in rows if of == group]}


def make(folder):
    """Writes the run into `folder`, which it makes, and returns it."""
    rng = np.random.default_rng(12)
    capture = pathlib.Path(folder) / "captures" / f"step_{STEPS}"
    capture.mkdir(parents=True)
    (pathlib.Path(folder) / "rollouts").mkdir()
    lines = {"metrics.jsonl": metrics(rng)}
    rows = list(completions(rng))
    lines[f"rollouts/step_{STEPS}.jsonl"] = texts(rows)
    for name, values in lines.items():
        (pathlib.Path(folder) / name).write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    data = as_safetensors(tensors(rows))
    (capture / "tensors.safetensors").write_bytes(data)
    (capture / "manifest.json").write_text(json.dumps({
        "format": "tandem-capture", "format_version": 2, "created_at": "2026-11-28T00:00:00Z", "tandem_version": "made up",
        "source": "run", "step": STEPS, "proximal_version": STEPS - 1, "model": {"path": "made up"}, "sampling": {"temperature": 1},
        "servers": [{"dtype": "bf16"}], "trainer": {"dtype": "fp32"}, "columns_digest": digest_of(data)}), encoding="utf-8")
    return pathlib.Path(folder)


if __name__ == "__main__":
    make(sys.argv[1])
