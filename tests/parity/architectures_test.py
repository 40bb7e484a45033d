"""Every family and rotary scaling compared with transformers in fp32: log-probs of the server's two paths and of the trainer,
greedy ids, `exact` bit for bit, gradients, and directories that are written and read again. The table of docs/models.md is made
of the results (UPDATE_PAGES=1 writes it).
"""
import os
import pathlib
import subprocess

import pytest
import torch
import transformers

import make_models
from engine_parity_test import TANDEM, TOLERANCE, assert_same_greedy, assert_same_scores, predictions, random_ids, tandem
from loss_parity_test import gradients, logprobs_of, make_groups, parameters_of, run_driver, set_behaviour

# Longer than every window and across borders of KV blocks. Long rope's short factors end at 256.
LONGEST = 230
PAGE = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "docs" / "models.md"
BEGIN, END = "<!-- architectures: made by tests/parity/architectures_test.py -->\n", "<!-- end of architectures -->\n"

# kind -> (model_type with the setting that is tested, checkpoints of the kind, what it has beside a Llama decoder)
ROWS = {
    "llama": ("`llama`, rope `llama3`", "Llama 2 and 3, SmolLM2, Yi", ""),
    "qwen2": ("`qwen2`", "Qwen2, Qwen2.5", "biases of queries, keys and values"),
    "qwen3": ("`qwen3`", "Qwen3 (dense)", "norms of query and key heads"),
    "mistral": ("`mistral`", "Mistral 7B, Mistral Nemo", "a sliding window in every layer, where it is set"),
    "gemma2": ("`gemma2`", "Gemma 2", "sandwich norms, GEGLU, capped scores and logits, a window in every second layer"),
    "gemma3": ("`gemma3_text`, rope `linear`", "Gemma 3 270M and 1B",
               "sandwich norms, GEGLU, norms of query and key heads, windows with a rotary embedding of their own"),
    "phi3": ("`phi3`", "Phi-3 mini and medium, Phi-4 mini", "fused projections, a sliding window where it is set"),
    "phi3-longrope": ("`phi3`, rope `longrope`", "Phi-3 mini 128k, Phi-4 mini",
                      "a rotary embedding of a part of the head; contexts up to the original one"),
    "olmo2": ("`olmo2`", "OLMo 2", "norms of what attention and MLP add, norms over whole projections"),
    "smollm3": ("`smollm3`", "SmolLM3", "layers without rotary embedding, a window where it is set"),
    "glm4": ("`glm4`", "GLM-4 0414", "sandwich norms, pairs of neighbouring elements rotated in half of the head"),
    "qwen2-window": ("`qwen2`, `use_sliding_window`", "", "a sliding window from a layer on"),
    "qwen3-yarn": ("`qwen3`, rope `yarn`", "long contexts of Qwen2.5 and Qwen3", ""),
    "llama-linear": ("`llama`, rope `linear`", "", ""),
}
CHECKS = ("server", "greedy", "trainer", "exact", "gradient", "written again")
passed = {}  # kind -> the checks that held


@pytest.fixture(scope="module", params=ROWS)
def made(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / request.param
    return request.param, make_models.make_model(request.param, directory, seed=3), directory


def test_the_server_scores_as_transformers(made):
    kind, model, directory = made
    assert_same_scores(model, directory, random_ids(6, LONGEST, model.config.vocab_size))
    passed.setdefault(kind, set()).add("server")


def test_the_server_decodes_greedily_as_transformers(made):
    kind, model, directory = made
    assert_same_greedy(model, directory, random_ids(12, 90, model.config.vocab_size), 24)
    passed.setdefault(kind, set()).add("greedy")


def test_the_trainer_scores_as_transformers(made):
    kind, model, directory = made
    sequences = random_ids(6, LONGEST, model.config.vocab_size)
    answers = tandem("score", "--model", directory, "--engine", "trainer", "--dtype", "fp32",
                     lines=[{"ids": ids} for ids in sequences])
    for ids, answer in zip(sequences, answers, strict=True):
        assert answer["logprobs"][1:] == pytest.approx(predictions(model, ids)[0], rel=0, abs=TOLERANCE)
    passed.setdefault(kind, set()).add("trainer")


def test_both_sides_give_the_same_bits_in_exact_mode(made):
    kind, model, directory = made
    lines = [{"ids": ids} for ids in random_ids(5, LONGEST, model.config.vocab_size)]
    for dtype in ("fp32", "bf16"):
        flags = ["--model", directory, "--dtype", dtype, "--numerics", "exact"]
        decoded = tandem("score", *flags, "--engine", "rollout", lines=lines)
        scored = tandem("score", *flags, "--engine", "trainer", lines=lines)
        assert [a["logprobs"] for a in decoded] == [a["logprobs"] for a in scored], dtype
    passed.setdefault(kind, set()).add("exact")


def test_gradients_are_those_of_autograd(made, tmp_path):
    kind, model, directory = made
    groups = make_groups(seed=5)
    for group in groups:  # a prompt longer than the windows
        group["prompt"] = random_ids(1, 45, model.config.vocab_size)[0] + group["prompt"]
    set_behaviour(model, groups, seed=6, spread=0.0)
    run_driver(tmp_path, directory, groups,
               "optimizer: {learning_rate: 1.0e-4, beta1: 0.0, max_grad_norm: 0.0}\n")
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
    passed.setdefault(kind, set()).add("gradient")


def test_an_exported_directory_loads_in_transformers_with_the_same_logits(made, tmp_path):
    kind, model, directory = made
    out = tmp_path / "exported"
    done = subprocess.run([TANDEM, "export", directory, "--out", out], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = torch.tensor(random_ids(1, 120, model.config.vocab_size))
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, again(ids).logits)
    passed.setdefault(kind, set()).add("written again")


def table():
    lines = [f"| `model_type` | checkpoints | beside Llama's decoder | {' | '.join(CHECKS)} |",
             "|---|---|---|" + "---|" * len(CHECKS)]
    for kind, (name, checkpoints, features) in ROWS.items():
        marks = " | ".join("yes" if check in passed.get(kind, ()) else "no" for check in CHECKS)
        lines.append(f"| {name} | {checkpoints} | {features} | {marks} |")
    return "\n".join(lines) + "\n"


def test_the_page_of_models_shows_these_results():
    text = PAGE.read_text(encoding="utf-8")
    assert BEGIN in text and END in text, f"{PAGE} has no place for the table"
    before, rest = text.split(BEGIN)
    shown, after = rest.split(END)
    if os.environ.get("UPDATE_PAGES") == "1":
        PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")
    else:
        assert shown == table(), "run this test with UPDATE_PAGES=1"
