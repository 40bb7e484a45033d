"""GRPO loss, gradients and updates of the trainer compared with an independent computation in PyTorch.

That computation follows the formulas: transformers' model on every sequence separately, autograd, torch.optim.AdamW. Ours is
loss_driver, which runs protobuf groups through stages 4 to 8.
"""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import make_models

BIN = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "loss_driver"
VOCABULARY = make_models.SHAPE["vocab_size"]
GRADIENT = "optimizer: {learning_rate: 1.0e-4, beta1: 0.0, max_grad_norm: 0.0}\n"

torch.set_num_threads(2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """name -> (directory, transformers model): the three families, and one with a separate head."""
    made = {}
    for name, kind, overrides in (("qwen2", "qwen2", {}), ("qwen3", "qwen3", {}),
                                  ("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
                                  ("llama_untied", "llama", {"tie_word_embeddings": False})):
        directory = tmp_path_factory.mktemp(name)
        made[name] = (directory, make_models.make_model(kind, directory, seed=3, **overrides))
    return made


def make_groups(seed, num_groups=3, group_size=3, scale=0.3):
    """Prompts and completions with different lengths. The caller sets the behaviour log-probs."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(num_groups):
        completions = [{"ids": rng.integers(3, VOCABULARY, rng.integers(2, 9)).tolist(),
                        "advantage": float(np.float32(rng.normal())), "masked": False}
                       for _ in range(group_size)]
        groups.append({"prompt": rng.integers(3, VOCABULARY, rng.integers(3, 12)).tolist(),
                       "completions": completions})
    return groups


def logprobs_of(model, prompt, ids, temperature=1.0):
    tokens = torch.tensor([prompt + ids])
    logits = model(tokens, use_cache=False).logits[0, len(prompt) - 1:-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def set_behaviour(model, groups, seed, spread, temperature=1.0):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for group in groups:
            for c in group["completions"]:
                logprobs = logprobs_of(model, group["prompt"], c["ids"], temperature).numpy()
                noisy = logprobs + rng.normal(0, spread, len(logprobs))
                c["behaviour"] = np.minimum(noisy, -1e-4).astype(np.float32).tolist()


def run_driver(tmp_path, directory, groups, options, reference=None, temperature=1.0):
    request = {"model": str(directory), "reference": reference and str(reference), "dtype": "fp32",
               "temperature": temperature, "options": options, "groups": groups,
               "moments": str(tmp_path / "moments.safetensors"),
               "weights": str(tmp_path / "weights.safetensors")}
    out = subprocess.run([BIN], input=json.dumps(request), capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def gradients(tmp_path):
    state = load_file(tmp_path / "moments.safetensors")
    return {name[len("exp_avg."):]: value for name, value in state.items()
            if name.startswith("exp_avg.")}


def parameters_of(model):
    return {name: p for name, p in model.named_parameters()
            if not (name == "lm_head.weight" and model.config.tie_word_embeddings)}


def reference_loss(model, groups, proximal, *, eps_low=0.2, eps_high=0.2, max_weight=2.0,
                   normalisation="token", constant_length=0, temperature=1.0, frozen=None, beta=0.0,
                   dual_clip=0.0):
    """The loss of these groups from the formulas; `proximal` per completion, or None for the detached
    target."""
    total, tokens, completions = 0.0, 0, 0
    for g, group in enumerate(groups):
        for i, c in enumerate(group["completions"]):
            if c["masked"]:
                continue
            target = logprobs_of(model, group["prompt"], c["ids"], temperature)
            centre = target.detach() if proximal is None else proximal[g][i]
            mu = torch.tensor([float("nan") if b is None else b for b in c["behaviour"]])
            kept = torch.isfinite(mu)
            mu = torch.where(kept, mu, 0.0)  # NaN times zero is NaN, also in gradients
            w = torch.exp((centre - mu).clamp(-20, 20)).clamp(max=max_weight)
            r = torch.exp(target - centre)
            a = c["advantage"]
            objective = torch.minimum(r * a, r.clamp(1 - eps_low, 1 + eps_high) * a)
            if dual_clip and a < 0:
                objective = objective.clamp(min=dual_clip * a)
            loss = -w * objective
            if beta:
                with torch.no_grad():
                    fixed = logprobs_of(frozen, group["prompt"], c["ids"], temperature)
                d = target - fixed
                loss = loss + beta * (torch.exp(-d) - 1 + d)
            loss = torch.where(kept, loss, 0.0).sum()
            total = total + (loss / kept.sum() if normalisation == "sequence" else loss)
            tokens += int(kept.sum())
            completions += 1
    divisor = {"token": tokens, "sequence": completions,
               "constant": completions * constant_length}[normalisation]
    return total / divisor


def check_gradients(tmp_path, model, loss):
    for p in model.parameters():
        p.grad = None
    loss.backward()
    ours = gradients(tmp_path)
    theirs = {name: p.grad for name, p in parameters_of(model).items()}
    assert ours.keys() == theirs.keys()
    norm = torch.sqrt(sum((g ** 2).sum() for g in theirs.values()))
    for name, grad in theirs.items():
        assert (ours[name] - grad).abs().max() <= 1e-5 * max(1.0, float(norm)), name
    return float(norm)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama", "llama_untied"])
def test_loss_and_gradient_of_every_family(models, tmp_path, name):
    directory, model = models[name]
    groups = make_groups(1)
    set_behaviour(model, groups, 2, 0.5)
    out = run_driver(tmp_path, directory, groups, GRADIENT)
    loss = reference_loss(model, groups, None)
    assert out["metrics"]["loss/policy"] == pytest.approx(float(loss.detach()), abs=1e-5)
    norm = check_gradients(tmp_path, model, loss)
    assert out["metrics"]["optimizer/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert out["metrics"]["correction/capped_share"] > 0


@pytest.mark.parametrize("normalisation", ["sequence", "constant"])
def test_normalisations(models, tmp_path, normalisation):
    directory, model = models["llama"]
    groups = make_groups(4)
    set_behaviour(model, groups, 5, 0.2)
    options = GRADIENT + f"loss: {{normalisation: {normalisation}, constant_length: 16}}\n"
    out = run_driver(tmp_path, directory, groups, options)
    loss = reference_loss(model, groups, None, normalisation=normalisation, constant_length=16)
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-5)
    check_gradients(tmp_path, model, loss)


def test_weights_and_ratios_of_whole_completions(models, tmp_path):
    """GSPO under truncated products: both need the completion of each token, over packed rows."""
    directory, model = models["llama"]
    groups = make_groups(13)
    set_behaviour(model, groups, 14, 0.4)
    options = GRADIENT + """
microbatch_tokens: 40
correction: {kind: sequence_tis, max_weight: 1.5}
loss: {kind: gspo, normalisation: sequence}
"""
    out = run_driver(tmp_path, directory, groups, options)
    losses, weights = [], []
    for group in groups:
        for c in group["completions"]:
            target = logprobs_of(model, group["prompt"], c["ids"])
            w = torch.exp((target.detach() - torch.tensor(c["behaviour"])).sum()).clamp(max=1.5)
            s = torch.exp((target - target.detach()).mean())
            losses.append(-w * c["advantage"] * torch.minimum(s, s.clamp(1 - 3e-4, 1 + 4e-4)))
            weights += [float(w)] * len(target)
    loss = sum(losses) / len(losses)
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert out["metrics"]["correction/mean_weight"] == pytest.approx(np.mean(weights), abs=1e-5)
    assert 0 < out["metrics"]["correction/capped_share"] < 1
    check_gradients(tmp_path, model, loss)


def test_tempered_policy_and_dropped_tokens(models, tmp_path):
    """Log-probs at the temperature of the sampler. A masked completion and two tokens without a log-prob are neither in the sum
    nor in the divisor."""
    directory, model = models["qwen3"]
    groups = make_groups(6)
    set_behaviour(model, groups, 7, 0.2, temperature=0.7)
    groups[0]["completions"][1]["masked"] = True
    groups[1]["completions"][0]["behaviour"][0] = None
    groups[2]["completions"][2]["behaviour"][-1] = None
    out = run_driver(tmp_path, directory, groups, GRADIENT, temperature=0.7)
    loss = reference_loss(model, groups, None, temperature=0.7)
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert out["metrics"]["correction/rejected_tokens"] == 2
    assert out["metrics"]["drift/mean_abs_delta"] < 0.5  # at T = 1 it would be far larger
    check_gradients(tmp_path, model, loss)


def test_kl_to_a_frozen_reference(models, tmp_path):
    directory, model = models["qwen2"]
    frozen_directory = tmp_path / "frozen"
    frozen = make_models.make_model("qwen2", frozen_directory, seed=8)
    with torch.no_grad():  # near the policy, as a starting model is
        for p, q in zip(frozen.parameters(), model.parameters()):
            p.copy_(q + 0.02 * p)
    frozen.save_pretrained(frozen_directory)
    groups = make_groups(9)
    set_behaviour(model, groups, 10, 0.1)
    out = run_driver(tmp_path, directory, groups, GRADIENT + "loss: {kl_coefficient: 0.3}\n",
                     reference=frozen_directory)
    loss = reference_loss(model, groups, None, frozen=frozen, beta=0.3)
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert out["metrics"]["kl_reference/k3"] > 1e-4
    check_gradients(tmp_path, model, loss)


def test_several_minibatches_and_epochs_give_the_same_weights(models, tmp_path):
    """Two epochs of two minibatches with clipping, dual clip and AdamW with decay: the proximal
    log-probs are those of the first weights throughout."""
    directory, _ = models["llama_untied"]
    model = make_models.make_model("llama", tmp_path / "copy", seed=3, tie_word_embeddings=False)
    groups = make_groups(11, num_groups=4)
    set_behaviour(model, groups, 12, 0.3)
    out = run_driver(tmp_path, directory, groups, """
num_minibatches: 2
num_epochs: 2
microbatch_tokens: 40
loss: {clip_low: 0.1, clip_high: 0.3, dual_clip: 3.0}
optimizer: {learning_rate: 2.0e-3, weight_decay: 0.1, max_grad_norm: 0.5}
""")
    with torch.no_grad():
        proximal = [[logprobs_of(model, g["prompt"], c["ids"]) for c in g["completions"]]
                    for g in groups]
    named = parameters_of(model)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in named.values() if p.dim() > 1], "weight_decay": 0.1},
         {"params": [p for p in named.values() if p.dim() == 1], "weight_decay": 0.0}], lr=2e-3)
    losses = []
    for _ in range(2):
        for half in (slice(0, 2), slice(2, 4)):
            optimizer.zero_grad()
            loss = reference_loss(model, groups[half], proximal[half], eps_low=0.1, eps_high=0.3,
                                  dual_clip=3.0)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(named.values(), 0.5)
            optimizer.step()
            losses.append(float(loss.detach()))
    metrics = out["metrics"]
    assert metrics["loss/num_updates"] == 4
    assert metrics["loss/policy"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert metrics["loss/clip_low_share"] + metrics["loss/clip_high_share"] > 0
    ours = load_file(tmp_path / "weights.safetensors")
    for name, p in named.items():
        # The first updates of AdamW have the sign of the gradient, even if it is nearly zero.
        moved = (ours[name] - p.detach()).abs()
        assert float(moved.mean()) < 2e-6 and float((moved > 1e-4).float().mean()) < 2e-3, name
    for g, of_group in enumerate(proximal):
        for i, expected in enumerate(of_group):
            np.testing.assert_allclose(out["proximal"][g][i], expected.numpy(), atol=2e-5)
