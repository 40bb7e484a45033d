"""Exact and invariant numerics on SmolLM2-135M (make check-full): equal bits over thousands of tokens."""
import json
import os
import pathlib
import subprocess

import pytest

TANDEM = pathlib.Path(os.environ["TANDEM_BIN"]) / "tandem"
MODEL = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "models" / "smollm2-135m-instruct"
# 40 prompts x 8 completions x 64 tokens = 20 480 tokens.
PROMPTS = [f"Tell me {i} facts about the number {i * 37}." for i in range(1, 41)]


def lines(*command, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([str(TANDEM), *map(str, command)], input=text, capture_output=True, text=True,
                          timeout=3000)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def generate(dtype, prompts, *flags):
    return lines("generate", "--model", MODEL, "--dtype", dtype, "--max-new-tokens", 64, "--ignore-eos", "-n", 8,
                 "--seed", 3, *flags, rows=[{"prompt": prompt} for prompt in prompts])


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def drawn(request):
    groups = generate(request.param, PROMPTS, "--numerics", "exact")
    ids = lines("tokenize", "--model", MODEL, rows=[{"text": prompt} for prompt in PROMPTS])
    return request.param, [line["ids"] for line in ids], groups


def test_the_trainer_gives_every_token_the_engines_log_prob(drawn):
    dtype, prompts, groups = drawn
    rows, behaviour = [], []
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group["completions"]:
            rows.append({"ids": prompt + completion["ids"]})
            behaviour.append(completion["behaviour_logprobs"])
    scores = lines("score", "--model", MODEL, "--engine", "trainer", "--dtype", dtype, "--numerics", "exact",
                   rows=rows)
    num_tokens = 0
    for row, score, want in zip(rows, scores, behaviour, strict=True):
        got = score["logprobs"][len(row["ids"]) - len(want):]
        assert got == want
        num_tokens += len(want)
    assert num_tokens >= 20_000


def test_completions_do_not_depend_on_company_or_threads(drawn):
    dtype, _, groups = drawn
    few = generate(dtype, PROMPTS[:2], "--numerics", "invariant", "--threads", 1)
    assert few == groups[:2]
