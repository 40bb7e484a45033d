"""The rollout engine compared with transformers in fp32: log-probs of both paths (token by token with the KV cache, and one
prefill) within 2e-4, and identical greedy generations for 32 prompts.
"""
import json
import os
import pathlib

import pytest
import torch
import transformers

from forked_tandem import forked_tandem
from make_models import KINDS, make_model

TANDEM = pathlib.Path(os.environ["TANDEM_BIN"]) / "tandem"
SMOLLM2 = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "models" / "smollm2-135m-instruct"
TOLERANCE = 2e-4
NUM_PROMPTS = 32


def tandem(subcommand, *flags, lines):
    """Runs `tandem SUBCOMMAND` over JSON lines and returns its JSON lines."""
    done = forked_tandem(subcommand, *flags, text="".join(json.dumps(line) + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), done.stderr
    return answers


def random_ids(count, longest, vocab_size):
    """`count` sequences of 2 to `longest` ids; the lengths cross the borders of KV blocks."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.linspace(2, longest, count).round().long().tolist()
    return [torch.randint(3, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def predictions(model, ids):
    """For each token except the first: its log-prob in transformers, and the likeliest id at its position."""
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
    return (logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist(),
            logprobs.argmax(-1).tolist())


def assert_same_scores(model, directory, sequences):
    lines = [{"ids": ids} for ids in sequences]
    expected = [predictions(model, ids)[0] for ids in sequences]
    for path in ("decode", "prefill"):
        answers = tandem("score", "--model", directory, "--engine", "rollout", "--dtype", "fp32",
                         "--path", path, lines=lines)
        for i, (answer, want) in enumerate(zip(answers, expected, strict=True)):
            got = answer["logprobs"]
            assert got[0] is None
            assert got[1:] == pytest.approx(want, rel=0, abs=TOLERANCE), f"{path}, sequence {i}"


def assert_same_greedy(model, directory, prompts, max_new_tokens):
    """A completion is greedy exactly if each token is the likeliest in transformers after its predecessors, and it ends at an
    end token or at the limit. One forward pass shows that."""
    end = model.generation_config.eos_token_id or model.config.eos_token_id
    ends = set(end) if isinstance(end, list) else {end}
    answers = tandem("generate", "--model", directory, "--dtype", "fp32", "--greedy",
                     "--max-new-tokens", max_new_tokens, lines=[{"ids": ids} for ids in prompts])
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        completion, = answer["completions"]
        ids = completion["ids"]
        logprobs, likeliest = predictions(model, prompt + ids)
        assert ids == likeliest[len(prompt) - 1:], f"prompt {i}"
        assert not ends & set(ids[:-1]), f"prompt {i} runs past an end token"
        assert ids[-1] in ends or len(ids) == max_new_tokens, f"prompt {i} ends early"
        assert completion["raw_logprobs"] == pytest.approx(logprobs[len(prompt) - 1:], rel=0,
                                                           abs=TOLERANCE)


@pytest.fixture(scope="module", params=[(kind, tied) for kind in KINDS for tied in (True, False)],
                ids=lambda p: f"{p[0]}-{'tied' if p[1] else 'untied'}")
def small(request, tmp_path_factory):
    kind, tied = request.param
    directory = tmp_path_factory.mktemp(kind)
    model = make_model(kind, directory, seed=3, tie_word_embeddings=tied)
    return model, directory


@pytest.fixture(scope="module")
def smollm2():
    assert SMOLLM2.is_dir(), f"{SMOLLM2} is missing: run deploy/setup/install.sh"
    model = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32)
    return model.eval(), SMOLLM2


def test_random_model_scores_as_in_transformers(small):
    model, directory = small
    assert_same_scores(model, directory, random_ids(8, 200, model.config.vocab_size))


def test_random_model_decodes_greedily_as_transformers(small):
    model, directory = small
    assert_same_greedy(model, directory, random_ids(NUM_PROMPTS, 70, model.config.vocab_size), 24)


def test_llama_without_rotary_scaling_and_with_every_bias(tmp_path):
    model = make_model("llama", tmp_path, seed=5, attention_bias=True, mlp_bias=True,
                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    assert_same_scores(model, tmp_path, random_ids(4, 120, model.config.vocab_size))


def multiplication_prompts(directory):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    texts = [f"What is {i // 6 + 2} * {i % 6 + 3}? Answer with just the number."
             for i in range(NUM_PROMPTS)]
    return [tokenizer(tokenizer.apply_chat_template([{"role": "user", "content": text}],
                                                    tokenize=False, add_generation_prompt=True),
                      add_special_tokens=False)["input_ids"] for text in texts]


def test_smollm2_scores_as_in_transformers(smollm2):
    model, directory = smollm2
    assert_same_scores(model, directory, multiplication_prompts(directory)[:4]
                       + random_ids(2, 70, model.config.vocab_size))


def test_smollm2_decodes_greedily_as_transformers(smollm2):
    model, directory = smollm2
    assert_same_greedy(model, directory, multiplication_prompts(directory), 16)
