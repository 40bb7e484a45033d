"""The transformers adapter: what it records is what the model's own logits say."""
import pytest
import torch
import transformers
from conftest import MODEL

PROMPTS = [[1, 4093, 198, 504], [1, 9690, 198, 2683]]


@pytest.fixture(scope="module")
def adapter(adapters):
    return adapters("tandem_rl.engines.transformers", "--model", MODEL, "--dtype", "fp32", "--option", "attn=eager",
                    "--option", "threads=1")


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def logits_of(model, prompt, completion):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1].double()


def chosen(logits, ids):
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def test_info_names_library_dtype_and_attention(adapter):
    info = adapter.ask("info")
    assert (info["engine"], info["version"], info["dtype"]) == ("transformers", transformers.__version__, "float32")
    assert info["details"]["attention"] == "eager"


def test_log_probs_are_those_of_the_distribution_drawn_from_and_raw_ones_of_the_logits(adapter, model):
    completions = adapter.ask("sample", prompts=PROMPTS, n=2, max_new_tokens=5, temperature=0.7, seed=3)["completions"]
    assert len(completions) == 4
    for one in completions:
        logits = logits_of(model, PROMPTS[one["prompt"]], one["token_ids"])
        torch.testing.assert_close(torch.tensor(one["logprobs"]).double(), chosen(logits / 0.7, one["token_ids"]), atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(one["raw_logprobs"]).double(), chosen(logits, one["token_ids"]), atol=1e-4, rtol=0)
    again = adapter.ask("sample", prompts=PROMPTS, n=2, max_new_tokens=5, temperature=0.7, seed=3)["completions"]
    assert again == completions


def test_filters_are_renormalised_and_keep_the_most_probable(adapter, model):
    completion = adapter.ask("sample", prompts=PROMPTS[:1], max_new_tokens=5, top_k=3)["completions"][0]
    logits = logits_of(model, PROMPTS[0], completion["token_ids"])
    top = logits.topk(3).values
    expected = chosen(logits, completion["token_ids"]) - (top.logsumexp(-1) - logits.logsumexp(-1))
    torch.testing.assert_close(torch.tensor(completion["logprobs"]).double(), expected, atol=1e-4, rtol=0)
    greedy = adapter.ask("sample", prompts=PROMPTS[:1], max_new_tokens=3, top_p=1e-6)["completions"][0]
    assert greedy["logprobs"] == [0, 0, 0]


def test_scores_are_those_of_the_models_logits_at_the_temperature(adapter, model):
    ids = [2683, 504, 1183]
    score = adapter.ask("score", rows=[{"token_ids": PROMPTS[0] + ids, "prompt_length": 4}], temperature=2)["rows"][0]
    logits = logits_of(model, PROMPTS[0], ids) / 2
    torch.testing.assert_close(torch.tensor(score["logprobs"]).double(), chosen(logits, ids), atol=1e-4, rtol=0)
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(torch.tensor(score["entropies"]).double(), entropies, atol=1e-3, rtol=0)


def test_what_the_model_does_not_take_is_refused(adapter):
    assert "outside the vocabulary" in adapter.ask("sample", prompts=[[10**6]])["error"]["message"]
    assert "over the model's context" in adapter.ask("sample", prompts=[[1]], max_new_tokens=10**6)["error"]["message"]
