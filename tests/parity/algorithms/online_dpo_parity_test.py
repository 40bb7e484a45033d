"""Online DPO of the trainer compared with formulas in PyTorch and with a training step of TRL's OnlineDPOTrainer.

Ours is loss_driver, which runs protobuf groups through stages 4 to 8 with loss.kind preference. The formulas are computed on
transformers' model, sequence by sequence. TRL's training_step runs unbound, on a namespace in place of the trainer that draws the
completions of the test and rewards them so that the first of each pair is chosen.
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from trl.experimental.online_dpo import OnlineDPOTrainer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import make_models  # noqa: E402

BIN = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "loss_driver"
VOCABULARY = make_models.SHAPE["vocab_size"]
OPTIONS = "optimizer: {learning_rate: 1.0e-4, beta1: 0.0, max_grad_norm: 0.0}\n"

torch.set_num_threads(2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The directories and transformers models of a policy and of a reference policy."""
    made = []
    for name, seed in (("policy", 3), ("reference", 4)):
        directory = tmp_path_factory.mktemp(name)
        made.append((directory, make_models.make_model("qwen2", directory, seed=seed)))
    return made


def logprobs_of(model, prompt, ids):
    logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1:-1].float()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def make_pairs(model, seed, count=4, spread=0.2):
    """Groups of two; the first completion is chosen in even groups, else the second."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(count):
        prompt = rng.integers(3, VOCABULARY, rng.integers(3, 9)).tolist()
        completions = []
        for i in range(2):
            ids = rng.integers(3, VOCABULARY, rng.integers(2, 8)).tolist()
            with torch.no_grad():
                noisy = logprobs_of(model, prompt, ids).numpy() + rng.normal(0, spread, len(ids))
            completions.append({"ids": ids, "advantage": 1.0 if i == g % 2 else -1.0, "masked": False,
                                "behaviour": np.minimum(noisy, -1e-4).astype(np.float32).tolist()})
        groups.append({"prompt": prompt, "completions": completions})
    return groups


def run_driver(tmp_path, models, groups, options, with_reference=True):
    request = {"model": str(models[0][0]), "reference": str(models[1][0]) if with_reference else None, "dtype": "fp32",
               "temperature": 1.0, "options": OPTIONS + options, "groups": groups,
               "moments": str(tmp_path / "moments.safetensors"), "weights": None}
    done = subprocess.run([BIN], input=json.dumps(request), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_gradients(tmp_path, model, loss):
    for parameter in model.parameters():
        parameter.grad = None
    loss.backward()
    compare_gradients(tmp_path, model)


def compare_gradients(tmp_path, model):
    state = load_file(tmp_path / "moments.safetensors")
    tied = model.config.tie_word_embeddings
    theirs = {name: p.grad for name, p in model.named_parameters() if not (name == "lm_head.weight" and tied)}
    norm = torch.sqrt(sum((grad ** 2).sum() for grad in theirs.values()))
    assert float(norm) > 1e-3
    for name, grad in theirs.items():
        assert (state["exp_avg." + name] - grad).abs().max() <= 1e-5 * max(1.0, float(norm)), name


def both_sides(model, group):
    """Log-probs of the chosen and of the rejected completion, and their behaviour log-probs."""
    order = sorted(group["completions"], key=lambda c: -c["advantage"])
    return [(logprobs_of(model, group["prompt"], c["ids"]), torch.tensor(c["behaviour"])) for c in order]


# Losses of (chosen, rejected, reference chosen, reference rejected, tokens of both). The two random models differ by tens of nats,
# so that the hinge needs a small beta to have a slope.
BETAS = {"dpo": 0.3, "ipo": 0.3, "dpo_hinge": 0.02, "simpo": 0.3}
LOSSES = {
    "dpo": lambda c, r, a, b, n, m: -F.logsigmoid(0.3 * (c - a - r + b)),
    "ipo": lambda c, r, a, b, n, m: ((c - a) / n - (r - b) / m - 1 / 0.6) ** 2,
    "dpo_hinge": lambda c, r, a, b, n, m: (1 - 0.02 * (c - a - r + b)).clamp(min=0),
    "simpo": lambda c, r, a, b, n, m: -F.logsigmoid(0.3 * (c / n - r / m) - 0.5),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("weights", ["off", "sequence", "geometric"])
def test_loss_and_gradient_are_those_of_the_formula(models, tmp_path, kind, weights):
    policy, reference = models[0][1], models[1][1]
    groups = make_pairs(policy, 5)
    losses = []
    for group in groups:
        (c, mu_c), (r, mu_r) = both_sides(policy, group)
        with torch.no_grad():
            (a, _), (b, _) = both_sides(reference, group)
            ratios = torch.cat([c - mu_c, r - mu_r])
            w = {"off": torch.tensor(1.0), "sequence": ratios.sum().exp().clamp(max=1.1),
                 "geometric": ratios.mean().exp().clamp(max=1.1)}[weights]
        losses.append(w * LOSSES[kind](c.sum(), r.sum(), a.sum(), b.sum(), len(c), len(r)))
    correction = "off" if weights == "off" else f"{weights}_tis, max_weight: 1.1"
    out = run_driver(tmp_path, models, groups, f"correction: {{kind: {correction}}}\n"
                     f"loss: {{kind: preference, preference: {{kind: {kind}, beta: {BETAS[kind]}}}}}\n", with_reference=kind != "simpo")
    loss = torch.stack(losses).mean()
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert out["metrics"]["pairs/count"] == len(groups)
    if weights == "sequence":
        assert 0 < out["metrics"]["pairs/bounded_share"] < 1
    check_gradients(tmp_path, policy, loss)


def test_the_rpo_term_is_over_the_chosen_tokens_of_the_batch(models, tmp_path):
    policy, reference = models[0][1], models[1][1]
    groups = make_pairs(policy, 6)
    losses, nll = [], []
    for group in groups:
        (c, _), (r, _) = both_sides(policy, group)
        with torch.no_grad():
            (a, _), (b, _) = both_sides(reference, group)
        losses.append(LOSSES["dpo"](c.sum(), r.sum(), a.sum(), b.sum(), None, None))
        nll.append(-c)
    loss = torch.stack(losses).mean() + 0.4 * torch.cat(nll).mean()
    out = run_driver(tmp_path, models, groups, "microbatch_tokens: 1\ncorrection: {kind: off}\n"
                     "loss: {kind: preference, preference: {beta: 0.3, rpo_alpha: 0.4}}\n")
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-5)
    check_gradients(tmp_path, policy, loss)


def trl_training_step(policy, reference, groups, beta):
    """Runs OnlineDPOTrainer.training_step on these groups; leaves gradients in `policy` and returns the loss and its stats."""
    def left(rows):
        width = max(len(row) for row in rows)
        return (torch.tensor([[0] * (width - len(row)) + row for row in rows]),
                torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]))

    def right(rows):
        width = max(len(row) for row in rows)
        return (torch.tensor([row + [0] * (width - len(row)) for row in rows]),
                torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]))

    drawn = [group["completions"][i] for i in range(2) for group in groups]  # the first of each, then the second
    prompt_ids, prompt_mask = left([group["prompt"] for group in groups] * 2)
    completion_ids, completion_mask = right([c["ids"] for c in drawn])
    same = lambda x: x  # noqa: E731
    policy.zero_grad(set_to_none=True)
    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(use_vllm=False, missing_eos_penalty=None, loss_type="sigmoid", torch_empty_cache_steps=None,
                                   optim="adamw_torch", n_gpu=1, gradient_accumulation_steps=1),
        _generate=lambda *_: (prompt_ids, prompt_mask, completion_ids, completion_mask, None),
        _calculate_rewards_from_functions=lambda **_: torch.tensor([c["advantage"] for c in drawn]),
        processing_class=types.SimpleNamespace(batch_decode=lambda ids, **_: [""] * len(ids)),
        accelerator=types.SimpleNamespace(gather_for_metrics=same, backward=lambda loss: loss.backward()),
        ref_model=reference, model=policy, eos_token_ids=[2], reward_funcs=[None], beta=beta, max_length=10**6,
        stats=collections.defaultdict(list))
    trainer._forward = types.MethodType(OnlineDPOTrainer._forward, trainer)
    loss = OnlineDPOTrainer.training_step(trainer, policy, {"prompt": [""] * len(groups)})
    return float(loss), {name: values[-1] for name, values in trainer.stats.items()}


@pytest.mark.parametrize("seed", [7, 8])
def test_a_step_is_that_of_trls_online_dpo_trainer(models, tmp_path, seed):
    policy, reference = models[0][1], models[1][1]
    groups = make_pairs(policy, seed)
    out = run_driver(tmp_path, models, groups,
                     "correction: {kind: off}\nloss: {kind: preference, preference: {beta: 0.3}}\n")["metrics"]
    loss, stats = trl_training_step(policy, reference, groups, beta=0.3)
    assert out["loss/preference"] == pytest.approx(loss, abs=1e-5)
    for name in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"):
        assert out[name] == pytest.approx(stats[name], abs=1e-4), name
    compare_gradients(tmp_path, policy)
