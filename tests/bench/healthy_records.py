#!/usr/bin/env python3
"""How often `tandem drift why RECORDS` accuses healthy records, and how often it finds a fault of the alignment.

Draws sets of rows from the pool of tests/bench/healthy_pool.py (real engines: transformers eager and sdpa, fp32 and
bf16), writes each as a records file, and asks for the verdict. Then the same sets with one fault each. Prints a table
in Markdown and, with --json-out, every set that was accused or missed.

    OMP_NUM_THREADS=1 .deps/venv/bin/python tests/bench/healthy_pool.py --out /tmp/healthy
    .deps/venv/bin/python tests/bench/healthy_records.py --pool /tmp/healthy [--sets 200] [--fault-sets 25] [--jobs 2]
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import struct
import subprocess
import tempfile

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TANDEM = SOURCE / "build" / "release" / "bin" / "tandem"
SETTINGS = {"fp32_t1": (1.0, 1.0), "bf16_t1": (1.0, 1.0), "bf16_eager_t07": (0.7, 1.0), "fp32_t07": (0.7, 1.0),
            "bf16_top_p": (1.0, 0.9), "fp32_top_p": (1.0, 0.9)}
SCORERS = ("fp32_sdpa", "fp32_eager", "bf16_sdpa", "bf16_eager")
END = 2


def load_pool(folder):
    """group -> list of rows, each a dict of arrays."""
    pool = {}
    for group in SETTINGS:
        path = folder / f"{group}.npz"
        if not path.exists():
            continue
        rows = {}
        with np.load(path) as file:
            for name in file.files:
                row, column = name.split("/", 1)
                rows.setdefault(row, {})[column] = file[name]
        pool[group] = [{"name": name, **columns} for name, columns in rows.items()]
    return pool


def healthy_set(pool, number):
    """One healthy record: rows of one group scored by one engine, with or without entropies, steps and advantages."""
    rng = random.Random(number)
    group = list(pool)[number % len(pool)]
    scorer = SCORERS[(number // len(pool)) % len(SCORERS)]
    temperature, top_p = SETTINGS[group]
    dtype = "float32" if group.startswith("fp32") else "bfloat16"
    claims = {"engine": "transformers", "dtype": dtype, "temperature": temperature, "top_p": top_p,
              "logprobs": "raw" if top_p < 1 else "processed"}
    header = {"tandem_capture": 3, "vocab_size": 49152, "eos_token_ids": [END], "behaviour": claims,
              "proximal": {"engine": "transformers", "dtype": "float32" if scorer.startswith("fp32") else "bfloat16",
                           "temperature": temperature}}
    with_entropy, with_steps = rng.random() < 0.5, rng.random() < 0.5
    rows = []
    for place, row in enumerate(rng.sample(pool[group], min(32, len(pool[group])))):
        ids, prompt = row["ids"].tolist(), row["prompt"].tolist()
        nothing = [None] * len(prompt)
        out = {"token_ids": prompt + ids, "prompt_length": len(prompt), "row_id": row["name"],
               "finish_reason": "stop" if ids[-1] == END else "length", "advantage": rng.gauss(0, 1),
               "behaviour_logprobs": nothing + row["whole"].tolist(),
               "proximal_logprobs": nothing + row[f"{scorer}/whole"].tolist(), "_pool": row, "_scorer": scorer}
        if with_entropy:
            out["behaviour_entropy"] = nothing + row["entropy"].tolist()
            out["proximal_entropy"] = nothing + row[f"{scorer}/entropy"].tolist()
        if with_steps:
            out.update(step=place // 4, weight_version=place // 4, proximal_version=place // 4 + rng.randrange(2))
        rows.append(out)
    return header, rows


# ---- faults: each changes the rows in place, names the signs of which one must be shown, and those that are true as
# ---- well, such as missing values where a shift left holes


def drawn(row):
    return row["behaviour_logprobs"][row["prompt_length"]:]


def set_drawn(row, values):
    row["behaviour_logprobs"][row["prompt_length"]:] = values


def shift(by, fill=None):
    def change(rows, rng):
        for row in rows:
            x = drawn(row)
            set_drawn(row, x[-by:] + [fill] * -by if by < 0 else [fill] * by + x[:len(x) - by])
    return change


def each(function):
    def change(rows, rng):
        for row in rows:
            set_drawn(row, [function(x) for x in drawn(row)])
    return change


def prompt_included(rows, rng):
    """The list of the engine began with the prompt, and was cut to the completion's length."""
    for row in rows:
        x, n = drawn(row), row["prompt_length"]
        set_drawn(row, ([-rng.random() * 6 for _ in range(n)] + x)[:len(x)])


def cut(row, length):
    for name, values in row.items():
        if isinstance(values, list):
            row[name] = values[:row["prompt_length"] + length]


def padding_side(rows, rng):
    for row in rows:
        cut(row, rng.randrange(60, 111))
        row.pop("finish_reason")
    longest = max(len(drawn(row)) for row in rows)
    for row in rows:
        x = drawn(row)
        set_drawn(row, (x + [0.0] * (longest - len(x)))[-len(x):])


def last(value):
    def change(rows, rng):
        for row in rows:
            set_drawn(row, drawn(row)[:-1] + [value])
    return change


def end_token_dropped(rows, rng):
    """The end token was drawn, and neither it nor its log-prob is in the record. False: too few rows ended."""
    if sum(row["finish_reason"] == "stop" for row in rows) < 3:
        return False
    for row in rows:
        if row["finish_reason"] == "stop" and len(drawn(row)) > 1:
            cut(row, len(drawn(row)) - 1)


def end_token_added(rows, rng):
    for row in rows:
        for name, values in row.items():
            if isinstance(values, list):
                row[name] = values + [END if name == "token_ids" else 0.0 if name == "behaviour_logprobs" else -8.0 if name == "proximal_logprobs" else 0.5]


def some(value, share=0.05):
    def change(rows, rng):
        for row in rows:
            set_drawn(row, [value if rng.random() < share else x for x in drawn(row)])
    return change


def permuted(rows, rng):
    values = [drawn(row) for row in rows]
    order = values[1:] + values[:1]
    for row, other in zip(rows, order):
        n = len(drawn(row))
        set_drawn(row, (other + [None] * n)[:n])


def bfloat16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000))[0]


def float16(x):
    return float(np.float16(x))


def filtered(rows, rng):
    if "top_p" not in rows[0]["row_id"]:
        return False
    for row in rows:
        set_drawn(row, row["_pool"]["filtered"].tolist())
        row.pop("behaviour_entropy", None)  # it would be that before the filter
    return True


def other_temperature(with_entropy):
    def change(rows, rng):
        if "t07" not in rows[0]["row_id"] or ("behaviour_entropy" in rows[0]) != with_entropy:
            return False
        for row in rows:
            row["proximal_logprobs"][row["prompt_length"]:] = row["_pool"][f"{row['_scorer']}/raw"].tolist()
            row.pop("proximal_entropy", None)  # it would be that at the other temperature
        return True
    return change


def raw_at_other_temperature(with_entropy):
    """vLLM's default at T = 0.7: what the engine returns is of T = 1."""
    def change(rows, rng):
        if "t07" not in rows[0]["row_id"] or ("behaviour_entropy" in rows[0]) != with_entropy:
            return False
        for row in rows:
            set_drawn(row, row["_pool"]["raw"].tolist())
            row.pop("behaviour_entropy", None)
        return True
    return change


def hidden_filter(rows, rng):
    return "top_p" in rows[0]["row_id"] and "behaviour_entropy" in rows[0]


# Sets of these faults claim nothing that would explain them.
UNCLAIMED = {"filtered, trainer unfiltered (top-p 0.9)", "drawn with top-p 0.9 that is not claimed, entropies"}
FAULTS = {
    **{f"shifted by {by:+d}": (shift(by), {"shift"}, {"missing_values"}) for by in (-2, -1, 1, 2)},
    "shifted by -1, filled with 0": (shift(-1, 0.0), {"shift"}, {"last_value_zero"}),
    "prompt included": (prompt_included, {"prompt_shift"}),
    "padded on the other side": (padding_side, {"padding_shift"}, {"zero_values", "last_value_zero"}),
    "end token's value missing": (last(None), {"missing_values"}),
    "end token's value 0": (last(0.0), {"last_value_zero"}),
    "end token dropped": (end_token_dropped, {"stop_tokens"}),
    "end token added": (end_token_added, {"last_value_zero", "end_token", "stop_tokens"}),
    "sentinel 1.0": (some(1.0), {"sentinel_values"}),
    "sentinel 0.0": (some(0.0), {"zero_values"}),
    "sentinel -9999": (some(-9999.0), {"sentinel_values"}),
    "null": (some(None), {"missing_values"}),
    "log2": (each(lambda x: x / math.log(2)), {"log_base"}),
    "log10": (each(lambda x: x / math.log(10)), {"log_base"}),
    "float16": (each(float16), {"rounding"}),
    "bfloat16": (each(bfloat16), {"rounding"}),
    "3 decimals": (each(lambda x: round(x, 3)), {"rounding"}),
    "5 decimals": (each(lambda x: round(x, 5)), {"rounding"}),
    "rows of other completions": (permuted, {"other_rows"}, {"missing_values"}),
    "filtered, trainer unfiltered (top-p 0.9)": (filtered, {"truncation"}),
    "trainer at T = 1, engine at 0.7, entropies": (other_temperature(True), {"temperature"}),
    "trainer at T = 1, engine at 0.7, no entropies: it may suspect": (other_temperature(False), {"temperature"}),
    "engine's log-probs raw at T = 0.7, entropies": (raw_at_other_temperature(True), {"temperature"}, {"draws"}),
    "engine's log-probs raw at T = 0.7": (raw_at_other_temperature(False), {"draws"}),
    "drawn with top-p 0.9 that is not claimed, entropies": (hidden_filter, {"draws"}),
}


def ask(tandem, header, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "records.jsonl"
        lines = [{name: value for name, value in line.items() if not name.startswith("_")} for line in (header, *rows)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        done = subprocess.run([tandem, "drift", "why", str(path), "--json"], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)


def one(task):
    tandem, pool, number, fault = task
    header, rows = healthy_set(pool, number)
    wanted, true_as_well = set(), set()
    if fault:
        change, wanted, true_as_well = (*FAULTS[fault], set())[:3]
        if fault in UNCLAIMED:
            header["behaviour"] = {"engine": "transformers", "temperature": 1.0}
        if change(rows, random.Random(number)) is False:
            return None
    found = ask(tandem, header, rows)
    accused = [sign for sign in found["signs"] if sign["accuses"]]
    told = {sign["sign"] for sign in found["signs"] if sign["accuses"] or sign["verdict"] == "suspected"}
    return {"number": number, "fault": fault, "found": not fault or bool(wanted & told),
            "wrong": sorted({sign["sign"] for sign in accused} - wanted - true_as_well), "verdict": found["verdict"],
            "accused": [sign["sign"] for sign in accused], "statements": [sign["statement"] for sign in accused],
            "first": accused[0]["sign"] if accused else "", "group": list(pool)[number % len(pool)],
            "effect": found["training_effect"]}


def number_range(results, key):
    values = sorted(result["effect"][key]["value"] for result in results)
    return f"{values[0]:.2g} to {values[-1]:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=pathlib.Path, required=True)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--fault-sets", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tandem", default=str(TANDEM), help="the program")
    parser.add_argument("--json-out", type=pathlib.Path)
    flags = parser.parse_args()
    pool = load_pool(flags.pool)
    tasks = [(flags.tandem, pool, number, None) for number in range(flags.sets)]
    tasks += [(flags.tandem, pool, number, fault) for fault in FAULTS for number in range(flags.fault_sets)]
    with concurrent.futures.ThreadPoolExecutor(flags.jobs) as workers:
        results = [result for result in workers.map(one, tasks) if result]
    healthy = [result for result in results if not result["fault"]]
    bad = [result for result in healthy if result["accused"]]
    print("| record | sets | found | the first fault shown | wrongly accused |\n|---|---|---|---|---|")
    print(f"| healthy | {len(healthy)} | - | - | {len(bad)} |")
    for fault, (_, wanted, *_) in FAULTS.items():
        of = [result for result in results if result["fault"] == fault]
        first = sum(result["first"] in wanted for result in of)
        print(f"| {fault} | {len(of)} | {sum(result['found'] for result in of)} | {first} | {sum(bool(result['wrong']) for result in of)} |")
        bad += [result for result in of if ("suspect" not in fault and not result["found"]) or result["wrong"]]
    for group in pool:
        of = [result for result in healthy if result["group"] == group]
        if of:
            print(f"\n{group}: mean |delta| {number_range(of, 'mean_abs_delta')}, k3 {number_range(of, 'k3')}")
    if flags.json_out:
        flags.json_out.write_text(json.dumps(bad, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
