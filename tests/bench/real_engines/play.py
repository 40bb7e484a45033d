"""Real engines with one known fault each, and what `tandem drift why` says of them.

    OMP_NUM_THREADS=1 nice .deps/venv/bin/python tests/bench/real_engines/make_models.py
    OMP_NUM_THREADS=1 nice .deps/venv/bin/python tests/bench/real_engines/play.py [--tandem PROGRAM] [--only CASE...]

Records go to runs/real_engines/records and are not made again while they are there; the verdicts are asked anew each time and
printed as Markdown. vLLM draws and transformers scores, both in bfloat16: 12 conversations, 2 completions of 64 tokens each."""
from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "records_faults")]
from confusion import names_of  # noqa: E402
from engine_survey import QUESTIONS, Adapter  # noqa: E402

BASE = "models/smollm2-135m-instruct"
MODELS = "runs/real_engines/models"
RECORDS = "runs/real_engines/records"
PROMPTS = "runs/real_engines/prompts.jsonl"
SYSTEM = "<|im_start|>system\n"


@dataclasses.dataclass
class Case:
    truth: str
    a: str = "vllm:bf16"
    b: str = "transformers:bf16"
    compare: tuple[str, ...] = ()
    model: str = BASE
    weights: str = ""
    made_from: str = ""  # records of another case, which `changed` rewrites
    changed: str = ""


CASES = {
    "healthy": Case("nothing is wrong"),
    "healthy_t07": Case("nothing is wrong; both sides at temperature 0.7, processed log-probs", compare=("--temperature", "0.7")),
    "raw_t07": Case("vLLM records raw log-probs at temperature 0.7, and says so", compare=("--temperature", "0.7", "--logprobs", "raw")),
    "raw_t07_undeclared": Case("vLLM records raw log-probs at temperature 0.7; the header says nothing of it", made_from="raw_t07",
                               changed="undeclared"),
    "norm_eps": Case("B runs with rms_norm_eps 1e-3 in place of 1e-5", b=f"transformers:bf16:model={MODELS}/norm_eps"),
    "norm_eps_a": Case("A runs with rms_norm_eps 1e-3 in place of 1e-5", a=f"vllm:bf16:model={MODELS}/norm_eps"),
    "lora_merged": Case("A has an adapter merged that B has not", a=f"vllm:bf16:model={MODELS}/lora_merged", weights=f"{MODELS}/lora_merged"),
    "lora_unmerged": Case("the model has an adapter merged that A serves without", a=f"vllm:bf16:model={BASE}",
                          b=f"transformers:bf16:model={MODELS}/lora_merged",
                          model=f"{MODELS}/lora_merged", weights=BASE),
    "shard_old": Case("B has layers 10 to 19 of the trained weights, all others of the model", b=f"transformers:bf16:model={MODELS}/shard_old",
                      weights=f"{MODELS}/trained"),
    "trained": Case("B has the trained weights", b=f"transformers:bf16:model={MODELS}/trained", weights=f"{MODELS}/trained"),
    "other_system": Case("B scores behind another system message", made_from="healthy",
                         changed=f"{SYSTEM}You are a terse expert. Answer without pleasantries.<|im_end|>\n"),
    "no_system": Case("B scores without the template's system message", made_from="healthy", changed="none"),
}


def write_prompts() -> None:
    (ROOT / RECORDS).mkdir(parents=True, exist_ok=True)
    (ROOT / PROMPTS).write_text("".join(json.dumps({"messages": [{"role": "user", "content": question}]}) + "\n" for question in QUESTIONS),
                                encoding="utf-8")


def compare_command(tandem: str, name: str, case: Case) -> list[str]:
    return [tandem, "drift", "compare", "--a", case.a, "--b", case.b, "--model", case.model, "--prompts", PROMPTS, "--group-size", "2",
            "--out", f"{RECORDS}/{name}.jsonl", *case.compare, "--records-only"]


def rewritten(name: str, case: Case) -> None:
    """The records of another case with another header, or with B's scores behind another prompt."""
    from transformers import AutoTokenizer
    header, *rows = [json.loads(line) for line in (ROOT / f"{RECORDS}/{case.made_from}.jsonl").read_text(encoding="utf-8").splitlines()]
    if case.changed == "undeclared":
        del header["behaviour"]["logprobs"]
    else:
        tokenizer = AutoTokenizer.from_pretrained(ROOT / BASE)
        scored = []
        for row in rows:
            prompt = tokenizer.decode(row["token_ids"][:row["prompt_length"]])
            user = prompt[prompt.index("<|im_start|>user\n"):]
            other = tokenizer.encode(("" if case.changed == "none" else case.changed) + user)
            scored.append({"ids": other + row["token_ids"][row["prompt_length"]:], "prompt": len(other)})
        engine = Adapter("transformers-bf16-sdpa")
        for row, values in zip(rows, engine.score(scored)):
            row["proximal_logprobs"] = [None] * row["prompt_length"] + values
            row.pop("proximal_entropy", None)
        engine.close()
    (ROOT / f"{RECORDS}/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (header, *rows)), encoding="utf-8")


def sides_of(answer: dict[str, Any]) -> str:
    lines = []
    for side in answer.get("referee", {}).get("sides", []):
        causes = "; ".join(f"{cause['cause']}: {cause.get('text', '')}" for cause in side.get("causes", [])[:3])
        lines.append(f"{side['side']}: {side['status']}" + (f" ({causes})" if causes else ""))
    return ". ".join(lines)


def ask(tandem: str, name: str, case: Case) -> None:
    command = [tandem, "drift", "why", f"{RECORDS}/{name}.jsonl", "--model", case.model,
               *(["--weights", case.weights] if case.weights else [])]
    began = time.monotonic()
    done = subprocess.run([*command, "--json-out", f"{RECORDS}/{name}.json"], cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    print(f"### {name}\n\n*True:* {case.truth}.\n\n```console")
    if case.made_from:
        print(f"# {RECORDS}/{case.made_from}.jsonl, rewritten by play.py")
    else:
        print("$ " + " ".join(["tandem", *compare_command(tandem, name, case)[1:]]))
    print("$ " + " ".join(["tandem", *command[1:]]))
    if done.returncode != 0:
        print(f"exit code {done.returncode}: {done.stderr.strip()}\n```\n", flush=True)
        return
    answer = json.loads((ROOT / f"{RECORDS}/{name}.json").read_text(encoding="utf-8"))
    print("```\n\n" + "\n".join(f"> {line}  " for line in (answer["headline"], answer["referee"]["headline"])) + "\n")
    print(f"{sides_of(answer)}. Names: {', '.join(names_of(answer)) or 'none'}. {took:.0f} s.\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default=str(ROOT / "build/release/bin/tandem"))
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--records-only", action="store_true", help="make records and ask nothing")
    given = parser.parse_args()
    write_prompts()
    for name, case in CASES.items():
        if name not in given.only:
            continue
        if not (ROOT / f"{RECORDS}/{name}.jsonl").exists():
            if case.made_from:
                rewritten(name, case)
            else:
                subprocess.run(compare_command(given.tandem, name, case), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        if not given.records_only:
            ask(given.tandem, name, case)


if __name__ == "__main__":
    main()
