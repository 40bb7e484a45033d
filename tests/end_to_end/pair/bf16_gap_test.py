"""SmolLM2 with a bf16 server and an fp32 trainer at equal weights: the mismatch between the two processes is
compared with that of `transformers` in bf16 between cached decode and full forward pass on the same tokens."""
import pytest
import small_run
import torch

MODEL = small_run.SOURCE / "models" / "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Two groups of 8 completions that a bf16 server sampled and an fp32 trainer scored."""
    folder = tmp_path_factory.mktemp("run")
    config = small_run.write_config(folder, MODEL, steps=1, prompts_per_step=2, completions_per_prompt=8,
                                    sampling={"temperature": 1, "max_new_tokens": 16},
                                    checkpoint={"at_end": False})
    code, output = small_run.run(config, "--set", "server.engine.dtype=bf16")
    assert code == 0, output
    return small_run.steps(folder)[0], small_run.rollouts(folder, 1)


def prompt_ids(tokenizer, group):
    return tokenizer(group["prompt"], add_special_tokens=False)["input_ids"]


def own_gap(model, tokenizer, groups):
    """The mean absolute difference of transformers' log-probs between cached decode and full forward pass."""
    gaps = []
    for group in groups:
        prompt = prompt_ids(tokenizer, group)
        for completion in group["completions"]:
            ids = torch.tensor([prompt + completion["token_ids"]])
            full = torch.log_softmax(model(ids).logits.float(), -1)[0]
            cache, rows = None, []
            for step in [ids[:, :len(prompt)]] + list(ids[:, len(prompt):-1].split(1, dim=1)):
                out = model(step, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                rows.append(torch.log_softmax(out.logits[0, -1].float(), -1))
            for i, token in enumerate(completion["token_ids"]):
                gaps.append(abs(full[len(prompt) - 1 + i, token] - rows[i][token]).item())
    return sum(gaps) / len(gaps)


def test_the_gap_is_at_most_twice_that_of_transformers_with_itself(groups):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    step, rollouts = groups
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        theirs = own_gap(model, tokenizer, rollouts)
    print(f"tandem {step['drift/mean_abs_delta']:.5f}, transformers with itself {theirs:.5f}")
    assert 0 < step["drift/mean_abs_delta"] <= 2 * theirs


def test_the_raw_logprobs_of_the_bf16_server_are_those_of_its_own_weights(groups):
    """Compared with transformers in fp32 with the same (bf16) weights, only activations differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, rollouts = groups
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    gaps = []
    with torch.inference_mode():
        for group in rollouts:
            prompt = prompt_ids(tokenizer, group)
            for completion in group["completions"]:
                ids = torch.tensor([prompt + completion["token_ids"]])
                full = torch.log_softmax(model(ids).logits, -1)[0]
                for i, token in enumerate(completion["token_ids"]):
                    gaps.append(abs(full[len(prompt) - 1 + i, token].item() - completion["raw_logprobs"][i]))
                    trainer = completion["proximal_logprobs"][i]
                    assert abs(full[len(prompt) - 1 + i, token].item() - trainer) <= 2e-4
    assert sum(gaps) / len(gaps) < 0.03
