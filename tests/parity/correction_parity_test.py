"""Corrections and objectives compared with TRL: the loss types of GRPOTrainer and its off-policy mask.

TRL's loss is a method of its trainer. Here it is called on an object with only the fields that the method reads, and with
log-probs from the test instead of a model; autograd gives its gradient. Ours is computed by method_driver. Methods that TRL
does not have are written from their formulas.
"""
import collections
import json
import os
import pathlib
import subprocess
import types

import numpy as np
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "method_driver"
ROWS, LENGTH = 6, 9


def make_batch(seed, spread=0.4):
    """Log-probs of the three policies, [ROWS, LENGTH], completions of unequal lengths, both signs."""
    rng = np.random.default_rng(seed)
    behaviour = -rng.uniform(0.3, 3, (ROWS, LENGTH))
    proximal = np.minimum(behaviour + rng.normal(0, spread, behaviour.shape), -0.01)
    target = np.minimum(proximal + rng.normal(0, spread, behaviour.shape), -0.01)
    mask = (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (ROWS, 1))).astype(int)
    return {"behaviour": behaviour, "proximal": proximal, "target": target, "mask": mask,
            "advantages": rng.normal(0, 1, ROWS)}


def ours(batch, settings):
    request = {"settings": settings, "mask": batch["mask"].ravel().tolist(),
               "completion": np.repeat(np.arange(ROWS), LENGTH).tolist(),
               "advantages": np.repeat(batch["advantages"], LENGTH).tolist()}
    for name in ("behaviour", "proximal", "target"):
        request[name] = batch[name].ravel().tolist()
    out = subprocess.run([DRIVER], input=json.dumps(request), capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return {k: np.array(v).reshape(ROWS, LENGTH) if isinstance(v, list) else v
            for k, v in json.loads(out.stdout).items()}


def trl_trainer(**arguments):
    """The fields of a trainer that GRPOTrainer._compute_loss reads, for one process and one step."""
    args = GRPOConfig(output_dir="unused", bf16=False, use_cpu=True, report_to=[], **arguments)
    accelerator = types.SimpleNamespace(num_processes=1, gather=lambda x: x, sync_gradients=True,
                                        reduce=lambda x, reduction: x)
    trainer = types.SimpleNamespace(
        args=args, accelerator=accelerator, model=types.SimpleNamespace(training=True),
        loss_type=args.loss_type, importance_sampling_level=args.importance_sampling_level,
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        off_policy_mask_threshold=args.off_policy_mask_threshold, beta=0.0, use_vllm=True,
        vllm_importance_sampling_correction=True, top_entropy_quantile=1.0, aux_loss_enabled=False,
        _entropy_bonus_enabled=False, current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights)
    args.steps_per_generation = 1
    return trainer


def theirs(batch, weight, **arguments):
    """TRL's loss and its gradient by the target log-probs."""
    target = torch.tensor(batch["target"], requires_grad=True)
    mask = torch.tensor(batch["mask"])
    trainer = trl_trainer(**arguments)
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (target, torch.zeros_like(target), None)
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    inputs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids), "completion_ids": ids,
              "completion_mask": mask, "advantages": torch.tensor(batch["advantages"]),
              "old_per_token_logps": torch.tensor(batch["proximal"]),
              "sampling_per_token_logps": torch.tensor(batch["behaviour"]),
              "importance_sampling_ratio": torch.tensor(weight),
              "num_items_in_batch": mask.sum()}
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return float(loss.detach()), target.grad.numpy()


def check(batch, settings, weight, **arguments):
    # TRL has sapo's temperatures (1.05) in float32.
    tolerance = 1e-7 if arguments["loss_type"] == "sapo" else 1e-10
    mine = ours(batch, settings)
    loss, gradient = theirs(batch, weight, **arguments)
    assert mine["loss"] == pytest.approx(loss, abs=tolerance)
    np.testing.assert_allclose(mine["coefficient"] / mine["denominator"], gradient, atol=tolerance)
    assert np.abs(gradient).max() > 1e-3
    return mine


def token_ratio(batch):
    return np.exp(batch["proximal"] - batch["behaviour"])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("settings, arguments", [
    ("loss.clip_high=0.28", {"loss_type": "dapo", "epsilon_high": 0.28}),
    ("loss.normalisation=sequence", {"loss_type": "grpo"}),
    (f"loss.normalisation=constant loss.constant_length={LENGTH}", {"loss_type": "dr_grpo"}),
    ("loss.kind=cispo loss.cispo_max=1.3", {"loss_type": "cispo", "epsilon_high": 1.3}),
    ("loss.kind=sapo loss.normalisation=sequence", {"loss_type": "sapo"}),
    ("loss.kind=sapo loss.normalisation=sequence loss.sapo_tau_negative=2",
     {"loss_type": "sapo", "sapo_temperature_neg": 2.0}),
    ("loss.kind=gspo loss.normalisation=sequence loss.gspo_clip_low=0.05 loss.gspo_clip_high=0.08",
     {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05,
      "epsilon_high": 0.08}),
])
def test_loss_types_under_truncated_token_weights(seed, settings, arguments):
    batch = make_batch(seed)
    weight = np.minimum(token_ratio(batch), 2.0)
    mine = check(batch, settings, weight, **arguments)
    if "sapo" not in settings:
        assert mine["clip_low"] + mine["clip_high"] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_vespo_with_the_ratio_to_the_behaviour_policy(seed):
    """Ours uses the whole ratio target / behaviour, and TRL computes the same from its two parts."""
    batch = make_batch(seed, spread=0.15)
    weight = np.where(batch["mask"], token_ratio(batch), 1.0)
    check(batch, "correction.mode=bypass loss.kind=vespo", weight, loss_type="vespo")


@pytest.mark.parametrize("level, bound, settings", [
    ("token", "truncate", "correction.kind=token_tis correction.max_weight=1.5"),
    ("token", "clip", "correction.kind=token_clip correction.min_weight=0.7 correction.max_weight=1.5"),
    ("token", "mask", "correction.kind=token_mask correction.min_weight=0.7 correction.max_weight=1.5"),
    ("sequence", "truncate", "correction.kind=sequence_tis correction.max_weight=1.5"),
    ("sequence", "clip",
     "correction.kind=sequence_clip correction.min_weight=0.7 correction.max_weight=1.5"),
    ("sequence", "mask",
     "correction.kind=sequence_mask correction.min_weight=0.7 correction.max_weight=1.5"),
])
def test_weights_of_vllm_importance_sampling_mode(level, bound, settings):
    """TRL's token_* and sequence_* modes, which are a few lines inside a method and are repeated here. TRL keeps masked tokens
    in the denominator."""
    batch = make_batch(4, spread=0.3)
    delta = (batch["proximal"] - batch["behaviour"]) * batch["mask"]
    ratio = np.exp(delta.sum(-1, keepdims=True) if level == "sequence" else delta)
    ratio = np.broadcast_to(ratio, delta.shape)
    low, high = (None if bound == "truncate" else 0.7), 1.5
    weight = np.clip(ratio, low, high)
    if bound == "mask":
        weight = np.where((ratio < low) | (ratio > high), 0.0, ratio)
    mine = check(batch, settings + " correction.denominator=all", weight, loss_type="dapo")
    np.testing.assert_allclose(mine["weight"], weight * batch["mask"], atol=1e-12)
    assert not np.allclose(weight, ratio)


def test_off_policy_mask_of_deepseek_v32():
    """Refuses negative completions whose mean log(behaviour / target) is over the threshold."""
    batch = make_batch(5, spread=0.5)
    batch["target"] = batch["proximal"]  # on the first update
    mine = ours(batch, "correction.kind=off correction.negative_only=true correction.geometric_min="
                f"{float(np.exp(-0.05))!r}")
    keep = GRPOTrainer.get_off_policy_mask(
        advantages=torch.tensor(batch["advantages"])[:, None],
        per_token_logps=torch.tensor(batch["target"]),
        sampling_per_token_logps=torch.tensor(batch["behaviour"]), mask=torch.tensor(batch["mask"]),
        off_policy_threshold=0.05).numpy()
    np.testing.assert_array_equal(mine["kept"], keep.astype(int) * batch["mask"])
    assert 0 < keep.sum() < ROWS


def m2po(batch, rule, budget):
    """Loss and gradient of M2PO by the formulas: `mask` of the paper (2510.01161, algorithm 1), `clip` of its authors'
    repository, whose tau solves mean(min(square, tau^2)) = budget; here by bisection."""
    target = torch.tensor(batch["target"], requires_grad=True)
    mask = torch.tensor(batch["mask"]).bool()
    advantages = torch.tensor(batch["advantages"])[:, None].expand_as(target)
    log_ratio = target - torch.tensor(batch["behaviour"])
    ratio = log_ratio.exp()
    squares = log_ratio.detach() ** 2
    acts = mask & (log_ratio.detach() * advantages > 0)
    within = squares[acts]
    if rule == "clip":
        low, high = 0.0, float(within.max())
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if within.clamp(max=middle).mean() < budget else (low, middle)
        tau = high ** 0.5 if within.mean() > budget else float("inf")
        bounded = ratio.clamp(np.exp(-tau), np.exp(tau))
        terms = -torch.minimum(ratio * advantages, bounded * advantages)
    else:
        rest = np.sort(within.numpy())
        while len(rest) and rest.mean() > budget:
            rest = rest[:-1]
        largest = rest[-1] if len(rest) else -1.0
        terms = torch.where(acts & (squares > largest), torch.zeros_like(ratio), -ratio * advantages)
    loss = terms[mask].sum() / mask.sum()
    loss.backward()
    return float(loss.detach()), target.grad.numpy(), int((acts & (target.grad == 0)).sum())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("budget", [0.01, 0.04, 0.2])
def test_m2po_of_the_paper_and_of_its_authors_repository(seed, budget):
    batch = make_batch(seed)
    stopped = {}
    for rule, kind in (("mask", "m2po"), ("clip", "m2po_clip")):
        mine = ours(batch, f"correction.mode=bypass loss.kind={kind} loss.m2po_max={budget}")
        loss, gradient, stopped[rule] = m2po(batch, rule, budget)
        assert mine["loss"] == pytest.approx(loss, abs=1e-10)
        np.testing.assert_allclose(mine["coefficient"] / mine["denominator"], gradient, atol=1e-10)
        assert mine["clip_low"] + mine["clip_high"] == stopped[rule]
    assert stopped["clip"] >= stopped["mask"]
    assert stopped["clip"] > 0
