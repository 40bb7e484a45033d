"""Compares what `tandem drift why` names with what is true of each case, and prints a Markdown table.

    .deps/venv/bin/python tests/bench/records_faults/confusion.py [--tandem PROGRAM] [--only TEXT] [--no-model] [--timeout SECONDS]

Each case is asked twice, without and with the model (and with the other weights where truth.json names some).
"""
from __future__ import annotations

import argparse
import collections
import json
import pathlib
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
CASES = ROOT / "runs/faults/cases"

# class of truth.json -> the names of the lab (signs of the screening, causes of the referee) that say it.
ACCEPTED: dict[str, list[str]] = {
    "healthy": [],
    "shift": ["shift"], "synthetic_end": ["last_value_zero", "end_token"],
    "missing_end": ["missing_values", "end_token", "stop_tokens"],
    "sentinel": ["sentinel_values", "zero_values", "missing_values"], "non_finite": ["nan_values", "missing_values"],
    "log_base": ["log_base", "probabilities"], "rounding": ["rounding"], "rows_permuted": ["other_rows"],
    "prompt_included": ["prompt_shift"], "padding_side": ["padding_shift", "some_rows"], "sign": ["negated"],
    "temperature": ["temperature"], "raw_recorded": ["raw_logprobs", "draws"],
    "top_k": ["top_k", "truncation"], "top_p": ["top_p", "truncation"], "min_p": ["min_p", "truncation"],
    "repetition_penalty": ["repetition_penalty"], "frequency_penalty": ["frequency_penalty"],
    "presence_penalty": ["presence_penalty"], "min_tokens": ["end_token_ban"], "draws": ["draws", "temperature"],
    "rope_theta": ["rope_theta", "rope_scaling"], "rope_position": ["position_offset", "position"], "norm_eps": ["rms_norm_eps"],
    "attention_window": ["attention_window", "position"], "attention_sinks": ["attention_sinks"], "softcap": ["logit_softcap"],
    "head_stale": ["lm_head", "part_of_other_weights"], "tensors_stale": ["part_of_other_weights"],
    "weights_late": ["other_weights", "other_weights_scaled"], "lora": ["other_weights", "other_weights_scaled"],
    "weight_noise": [],
    "weight_quantisation": ["quantised_weights"], "kv_quantisation": ["quantised_kv"],
    "logits_precision": ["rounded_site"], "softmax_precision": ["rounding", "rounded_site"], "attention_precision": ["rounded_site"],
    "bos": ["prompt", "first_token"], "prompt": ["prompt", "first_token"], "context_truncated": ["prompt"],
}

# A case with two faults: any of both may be named.
COMBINATIONS: dict[str, list[str]] = {
    "stale_and_decimals": ["rounding", "other_weights", "other_weights_scaled"],
    "shift_and_log2": ["shift", "log_base", "missing_values"],
    "int8_and_bf16_stored": ["rounding", "quantised_weights"],
    "temperature_and_bf16": ["temperature", "rounding"],
}

# Coarser: classes of one group are told from other groups, not from each other.
GROUPS: dict[str, list[str]] = {
    "healthy": ["healthy"],
    "record": ["shift", "synthetic_end", "missing_end", "sentinel", "non_finite", "log_base", "rounding", "rows_permuted",
               "prompt_included", "padding_side", "sign"],
    "sampler": ["temperature", "raw_recorded", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
                "presence_penalty", "min_tokens", "draws"],
    "arithmetic": ["logits_precision", "softmax_precision", "attention_precision", "weight_quantisation", "kv_quantisation"],
    "model": ["rope_theta", "rope_position", "norm_eps", "attention_window", "attention_sinks", "softcap"],
    "weights": ["head_stale", "tensors_stale", "weights_late", "lora", "weight_noise"],
    "context": ["bos", "prompt", "context_truncated"],
}

OUTCOMES = ("named right", "right class", "abstained", "wrong", "failed")


def ask(tandem: str, case: pathlib.Path, model: str | None, weights: str | None, timeout: float) -> dict[str, Any] | None:
    """The lab's answer as JSON, or nothing where it did not give one."""
    command = [tandem, "drift", "why", str(case / "records.jsonl"), "--json"]
    for option, directory in (("--model", model), ("--weights", weights)):
        if directory:
            command += [option, str(ROOT / directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def names_of(answer: dict[str, Any]) -> list[str]:
    """What the answer names with confidence: the signs that accuse, the causes of a side that the referee names or leaves
    between, and what the draws were found to have been drawn with. Sizes, suspicions and "unknown" name nothing."""
    names = [sign["sign"] for sign in answer["signs"] if sign["accuses"]]
    for side in answer.get("referee", {}).get("sides", []):
        if side["status"] in ("named", "one_of"):
            names += [name for cause in side["causes"] for name in cause["cause"].split("+")]
        draws = side.get("draws", {"follow_claims": True})
        names += [] if draws["follow_claims"] else draws["causes"]
    return names


def outcome_of(truth: dict[str, Any], names: list[str]) -> str:
    """The rule.

    named right: a name is accepted for the case's class, and every other name at least for its group; of a healthy case, none.
    right class: every name is accepted for another class of the same group.
    abstained:   nothing is named, where there is something to name.
    wrong:       a name of another group, or any name in a healthy case.
    """
    kind = truth["class"]
    if kind == "healthy":
        return "wrong" if names else "named right"
    if not names:
        return "abstained"
    accepted = COMBINATIONS[truth["name"]] if kind == "combination" else ACCEPTED[kind]
    group = next((members for members in GROUPS.values() if kind in members), [])
    near = {name for member in group for name in ACCEPTED[member]} | set(accepted)
    if not near.issuperset(names):
        return "wrong"
    return "named right" if set(accepted) & set(names) else "right class"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default=str(ROOT / "build/release/bin/tandem"))
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--begin", default="", help="leave out the cases before this name, to go on where a run was stopped")
    parser.add_argument("--needs-weights", action="store_true", help="healthy cases and those that numbers alone cannot show")
    parser.add_argument("--no-model", action="store_true", help="ask without the model only")
    parser.add_argument("--timeout", type=float, default=900.0)
    arguments = parser.parse_args()
    ways = ("records",) if arguments.no_model else ("records", "model")
    counts = {way: collections.Counter[str]() for way in ways}
    print("| case | true | size | without weights? | " + " | ".join(f"{way}: said | outcome" for way in ways) + " |")
    print("|" + "---|" * (4 + 2 * len(ways)))
    for case in sorted(path for path in CASES.iterdir() if arguments.only in path.name and path.name >= arguments.begin):
        truth = json.loads((case / "truth.json").read_text())
        if arguments.needs_weights and truth["visible_without_weights"] and truth["class"] != "healthy":
            continue
        cells = [truth["name"], f"{truth['class']} ({truth['side']})", truth["size"], "yes" if truth["visible_without_weights"] else "no"]
        for way in ways:
            with_model = way == "model"
            answer = ask(arguments.tandem, case, truth["model_dir"] if with_model else None,
                         truth.get("weights_dir") if with_model else None, arguments.timeout)
            names = names_of(answer) if answer is not None else []
            outcome = "failed" if answer is None else outcome_of(truth, names)
            counts[way][outcome] += 1
            cells += [", ".join(names[:3]) or "-", outcome]
        print("| " + " | ".join(cells) + " |", flush=True)
    for way in ways:
        print(f"\n{way}: " + ", ".join(f"{counts[way][outcome]} {outcome}" for outcome in OUTCOMES))


if __name__ == "__main__":
    main()
