"""The llama.cpp adapter: a file that it made itself, and log-probs of the right positions. Needs deploy/setup/install.sh --engines."""
import pytest
from conftest import MODEL, ROOT

PYTHON = ROOT / ".deps/engines/llama_cpp/bin/python"
PROMPT = [1, 4093, 198, 504]


def start(adapters, kind, cache):
    return adapters("tandem_rl.engines.llama_cpp", "--model", MODEL, "--dtype", kind, "--option", f"cache={cache}", "--option", "threads=2",
                    python=PYTHON)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("gguf")


def gaps(adapter, other, temperature=1.0):
    drawn = adapter.ask("sample", prompts=[PROMPT], n=2, max_new_tokens=12, temperature=temperature, seed=1)["completions"]
    rows = [{"token_ids": PROMPT + one["token_ids"], "prompt_length": len(PROMPT)} for one in drawn]
    scored = other.ask("score", rows=rows, temperature=temperature)["rows"]
    return [abs(x - y) for one, row in zip(drawn, scored, strict=True) for x, y in zip(one["logprobs"], row["logprobs"], strict=True)]


def test_full_precision_agrees_with_transformers_token_by_token(adapters, cache):
    llama = start(adapters, "f32", cache)
    info = llama.ask("info")
    assert (info["engine"], info["dtype"]) == ("llama.cpp", "float32")
    other = adapters("tandem_rl.engines.transformers", "--model", MODEL, "--dtype", "fp32")
    # Its KV cache is float16, which is worth about 1e-3 nats.
    assert max(gaps(llama, other)) < 0.02
    assert max(gaps(llama, other, 0.7)) < 0.02


def test_decoding_agrees_with_its_own_scores(adapters, cache):
    llama = start(adapters, "f32", cache)
    assert max(gaps(llama, llama)) < 0.02


def test_quantised_weights_are_further_off_and_the_finer_ones_less(adapters, cache):
    other = adapters("tandem_rl.engines.transformers", "--model", MODEL, "--dtype", "fp32")
    means = {}
    for kind in ("f16", "q8_0", "q4_K"):
        values = gaps(start(adapters, kind, cache), other)
        means[kind] = sum(values) / len(values)
    assert means["f16"] < means["q8_0"] < means["q4_K"] < 1
    assert start(adapters, "q8_0", cache).ask("info")["dtype"] == "int8"


def test_what_does_not_fit_is_refused(adapters, cache):
    llama = start(adapters, "f16", cache)
    assert "over n_ctx 1024" in llama.ask("sample", prompts=[PROMPT], max_new_tokens=2000)["error"]["message"]
    assert "outside the vocabulary" in llama.ask("sample", prompts=[[10**6]])["error"]["message"]
