"""The vLLM adapter on a CPU: what it records is what transformers scores, up to rounding. Needs deploy/setup/install.sh --engines."""
import json
import shutil

import pytest
from conftest import MODEL, ROOT

PYTHON = ROOT / ".deps/engines/vllm/bin/python"
PROMPT = [1, 4093, 198, 504]


@pytest.fixture(scope="module")
def vllm(adapters):
    return adapters("tandem_rl.engines.vllm", "--model", MODEL, "--dtype", "fp32", "--option", "max_model_len=64", python=PYTHON)


@pytest.fixture(scope="module")
def other(adapters):
    return adapters("tandem_rl.engines.transformers", "--model", MODEL, "--dtype", "fp32")


def sampled(vllm, **how):
    reply = vllm.ask("sample", prompts=[PROMPT], n=2, max_new_tokens=8, seed=1, **how)
    assert "error" not in reply, reply
    return reply["completions"]


def rows_of(drawn):
    return [{"token_ids": PROMPT + one["token_ids"], "prompt_length": len(PROMPT)} for one in drawn]


def furthest(drawn, reply):
    return max(abs(x - y) for one, row in zip(drawn, reply["rows"], strict=True) for x, y in zip(one["logprobs"], row["logprobs"], strict=True))


def test_info_says_what_was_started(vllm):
    info = vllm.ask("info")
    assert (info["engine"], info["dtype"]) == ("vllm", "float32")
    assert info["version"].startswith("0.32")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_processed_log_probs_and_scores_agree_with_transformers(vllm, other, temperature):
    drawn = sampled(vllm, temperature=temperature)
    assert furthest(drawn, other.ask("score", rows=rows_of(drawn), temperature=temperature)) < 1e-2
    assert furthest(drawn, vllm.ask("score", rows=rows_of(drawn), temperature=temperature)) < 1e-2


def test_raw_log_probs_are_of_the_untouched_logits(vllm, other):
    drawn = sampled(vllm, temperature=0.7, logprobs="raw")
    assert furthest(drawn, other.ask("score", rows=rows_of(drawn), temperature=1.0)) < 1e-2


def test_other_weights_renew_the_tied_head_too(vllm, other, tmp_path):
    """The embedding, which is the head, is halved: every logit is that of half the hidden state's product."""
    import safetensors.torch
    shutil.copytree(MODEL, tmp_path / "halved")
    tensors = safetensors.torch.load_file(MODEL / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] * 0.5
    safetensors.torch.save_file(tensors, tmp_path / "halved/model.safetensors", metadata={"format": "pt"})
    assert json.loads((MODEL / "config.json").read_text())["tie_word_embeddings"]
    for adapter in (vllm, other):
        assert adapter.ask("load_weights", directory=str(tmp_path / "halved")).get("loaded"), "not loaded"
    drawn = sampled(vllm)
    assert furthest(drawn, other.ask("score", rows=rows_of(drawn))) < 1e-2
