"""Every family and rotary scaling beside Qwen2, Qwen3 and Llama compared with transformers in fp32: log-probs of the server's
two paths and of the trainer, greedy ids, `exact` bit for bit, gradients, and directories that are written and read again.
"""
import json
import pathlib

import pytest
import torch
import transformers

import make_models
from engine_parity_test import assert_same_greedy, assert_same_scores, predictions, random_ids, tandem
from loss_parity_test import gradients, logprobs_of, make_groups, parameters_of, run_driver, set_behaviour

TOLERANCE = 2e-4
# Longer than every window and across borders of KV blocks. Long rope's short factors end at 256.
LONGEST = 230


@pytest.fixture(scope="module", params=make_models.MORE_KINDS)
def made(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / request.param
    return make_models.make_model(request.param, directory, seed=3), directory


def test_the_server_scores_as_transformers(made):
    model, directory = made
    assert_same_scores(model, directory, random_ids(6, LONGEST, model.config.vocab_size))


def test_the_server_decodes_greedily_as_transformers(made):
    model, directory = made
    assert_same_greedy(model, directory, random_ids(12, 90, model.config.vocab_size), 24)


def test_the_trainer_scores_as_transformers(made):
    model, directory = made
    sequences = random_ids(6, LONGEST, model.config.vocab_size)
    answers = tandem("score", "--model", directory, "--engine", "trainer", "--dtype", "fp32",
                     lines=[{"ids": ids} for ids in sequences])
    for ids, answer in zip(sequences, answers, strict=True):
        assert answer["logprobs"][1:] == pytest.approx(predictions(model, ids)[0], rel=0, abs=TOLERANCE)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_both_sides_give_the_same_bits_in_exact_mode(made, dtype):
    model, directory = made
    lines = [{"ids": ids} for ids in random_ids(5, LONGEST, model.config.vocab_size)]
    flags = ["--model", directory, "--dtype", dtype, "--numerics", "exact"]
    decoded = tandem("score", *flags, "--engine", "rollout", lines=lines)
    scored = tandem("score", *flags, "--engine", "trainer", lines=lines)
    assert [a["logprobs"] for a in decoded] == [a["logprobs"] for a in scored]


def test_gradients_are_those_of_autograd(made, tmp_path):
    model, directory = made
    groups = make_groups(seed=5)
    for group in groups:  # a prompt longer than the windows
        group["prompt"] = random_ids(1, 45, model.config.vocab_size)[0] + group["prompt"]
    set_behaviour(model, groups, seed=6, spread=0.0)
    options = "optimizer: {learning_rate: 1.0e-4, beta1: 0.0, max_grad_norm: 0.0}\n"
    run_driver(tmp_path, directory, groups, options)
    ours = gradients(tmp_path)

    model.zero_grad()
    total, tokens = 0.0, 0
    for group in groups:
        for completion in group["completions"]:
            target = logprobs_of(model, group["prompt"], completion["ids"])
            total = total - completion["advantage"] * torch.exp(target - target.detach()).sum()
            tokens += len(completion["ids"])
    (total / tokens).backward()
    parameters = parameters_of(model)
    assert ours.keys() == parameters.keys()
    for name, parameter in parameters.items():
        largest = parameter.grad.abs().max().item()
        assert torch.allclose(ours[name], parameter.grad, rtol=1e-3, atol=2e-4 * largest + 1e-7), name


def test_an_exported_directory_loads_in_transformers_with_the_same_logits(made, tmp_path):
    model, directory = made
    out = tmp_path / "exported"
    done = make_models_export(directory, out)
    assert done.returncode == 0, done.stderr
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = torch.tensor(random_ids(1, 120, model.config.vocab_size))
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, again(ids).logits)


def make_models_export(directory, out):
    import os
    import subprocess
    binary = pathlib.Path(os.environ["TANDEM_BIN"]) / "tandem"
    return subprocess.run([binary, "export", directory, "--out", out], text=True, capture_output=True, check=False)
