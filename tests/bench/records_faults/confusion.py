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

# class of truth.json -> names that the lab may give it. To be filled by whoever knows the lab's names.
# A name stands in one list only where it says one thing; "healthy" lists the words for "nothing is wrong".
ACCEPTED: dict[str, list[str]] = {
    "healthy": [],
    "shift": [], "synthetic_end": [], "missing_end": [], "sentinel": [], "non_finite": [], "log_base": [], "rounding": [],
    "rows_permuted": [], "prompt_included": [], "padding_side": [], "sign": [],
    "temperature": [], "raw_recorded": [], "top_k": [], "top_p": [], "min_p": [], "repetition_penalty": [],
    "frequency_penalty": [], "presence_penalty": [], "min_tokens": [], "draws": [],
    "rope_theta": [], "rope_position": [], "norm_eps": [], "attention_window": [], "attention_sinks": [], "softcap": [],
    "head_stale": [], "tensors_stale": [], "weights_late": [], "lora": [], "weight_quantisation": [], "kv_quantisation": [],
    "logits_precision": [], "softmax_precision": [], "attention_precision": [], "bos": [], "prompt": [], "context_truncated": [],
    "weight_noise": [], "combination": [],
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

# Names with which the lab says that it cannot tell. To be filled as well.
ABSTAINED: list[str] = []

OUTCOMES = ("named right", "right class", "abstained", "wrong", "not filled", "failed")


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


def names_of(answer: Any) -> list[str]:
    """What the answer names: causes first, then the signs that accuse, then the verdict as a whole.

    Written from the shape of the answer only; whoever fills ACCEPTED corrects it where the names stand elsewhere.
    """
    if not isinstance(answer, dict):
        return []
    causes = [cause if isinstance(cause, str) else cause.get("cause", cause.get("name", "")) for cause in answer.get("causes", [])]
    signs = [sign["sign"] for sign in answer.get("signs", []) if sign.get("accuses")]
    return [name for name in [*causes, *signs, answer.get("verdict", "")] if name]


def outcome_of(kind: str, names: list[str]) -> str:
    """The rule.

    named right: the first name that is not an abstention is accepted for the class.
    right class: it is accepted for another class of the same group.
    abstained:   there is no other name than abstentions, where there is something to name.
    wrong:       anything else, also a fault named in a healthy capture and "healthy" said of a fault.
    not filled:  ACCEPTED has no names for the class yet.
    A combination is named right where two names are accepted for classes of a group, whichever they are.
    """
    if kind != "combination" and not ACCEPTED[kind]:
        return "not filled"
    said = [name for name in names if name not in ABSTAINED]
    if not said:
        return "abstained"
    classes = [c for name in said for c, accepted in ACCEPTED.items() if name in accepted]
    if kind == "combination":
        return "named right" if len(set(classes)) > 1 else "right class" if classes and classes[0] != "healthy" else "wrong"
    if said[0] in ACCEPTED[kind]:
        return "named right"
    group = next((members for members in GROUPS.values() if kind in members), [])
    return "right class" if any(said[0] in ACCEPTED[member] for member in group) else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default=str(ROOT / "build/release/bin/tandem"))
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--no-model", action="store_true", help="ask without the model only")
    parser.add_argument("--timeout", type=float, default=900.0)
    arguments = parser.parse_args()
    ways = ("records",) if arguments.no_model else ("records", "model")
    counts = {way: collections.Counter[str]() for way in ways}
    print("| case | true | size | without weights? | " + " | ".join(f"{way}: said | outcome" for way in ways) + " |")
    print("|" + "---|" * (4 + 2 * len(ways)))
    for case in sorted(path for path in CASES.iterdir() if arguments.only in path.name):
        truth = json.loads((case / "truth.json").read_text())
        cells = [truth["name"], f"{truth['class']} ({truth['side']})", truth["size"], "yes" if truth["visible_without_weights"] else "no"]
        for way in ways:
            with_model = way == "model"
            answer = ask(arguments.tandem, case, truth["model_dir"] if with_model else None,
                         truth.get("weights_dir") if with_model else None, arguments.timeout)
            names = names_of(answer)
            outcome = "failed" if answer is None else outcome_of(truth["class"], names)
            counts[way][outcome] += 1
            cells += [", ".join(names[:3]) or "-", outcome]
        print("| " + " | ".join(cells) + " |", flush=True)
    for way in ways:
        print(f"\n{way}: " + ", ".join(f"{counts[way][outcome]} {outcome}" for outcome in OUTCOMES))


if __name__ == "__main__":
    main()
