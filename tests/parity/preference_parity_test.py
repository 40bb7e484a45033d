"""Losses of preference learning and of reward models compared with formulas in PyTorch and with TRL's own trainers.

Both sides get the same log-probs of tokens and must agree on the loss and on its gradient by every token. TRL's methods run
unbound: on a namespace in place of the trainer, and on a stand-in for the model that returns the log-probs of the test.
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
import torch.nn.functional as F
from trl import DPOTrainer, KTOTrainer, RewardTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "preference_driver"
PROMPT_TOKENS = 3

torch.set_num_threads(2)


def ours(request):
    done = subprocess.run([DRIVER], input=json.dumps(request), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def logprobs(rng, lengths, spread=1.0):
    return [torch.tensor(-rng.exponential(spread, n), dtype=torch.float64, requires_grad=True) for n in lengths]


class Pairs:
    """Random pairs; `scale` multiplies the log ratios, so that a large one reaches the flat parts of a loss."""

    def __init__(self, seed, count=6, scale=1.0):
        rng = np.random.default_rng(seed)
        chosen_lengths, rejected_lengths = rng.integers(1, 9, count), rng.integers(1, 9, count)
        self.chosen, self.rejected = logprobs(rng, chosen_lengths), logprobs(rng, rejected_lengths)
        with torch.no_grad():
            self.reference_chosen, self.reference_rejected = (
                [x + scale * torch.from_numpy(rng.normal(0, 1, len(x))) for x in side]
                for side in (self.chosen, self.rejected))
        self.margins = rng.normal(0, 1, count).tolist()

    def run(self, options, margins=False):
        lists = {name: [x.tolist() for x in getattr(self, name)]
                 for name in ("chosen", "rejected", "reference_chosen", "reference_rejected")}
        pairs = [{name: values[i] for name, values in lists.items()} | ({"margin": self.margins[i]} if margins else {})
                 for i in range(len(self.chosen))]
        return ours({"kind": "pairs", "options": options, "pairs": pairs})

    def sums(self, ld_alpha=1.0):
        """Weighted sums of the four sides, then the numbers of tokens."""
        shorter = [min(len(c), len(r)) for c, r in zip(self.chosen, self.rejected)]
        sums = [torch.stack([x[:n].sum() + ld_alpha * x[n:].sum() for x, n in zip(side, shorter)])
                for side in (self.chosen, self.rejected, self.reference_chosen, self.reference_rejected)]
        return *sums, *(torch.tensor([len(x) for x in side]) for side in (self.chosen, self.rejected))

    def mean_nll(self):
        return -torch.cat(self.chosen).mean()

    def check(self, out, loss, tolerance=1e-9):
        assert out["loss"] == pytest.approx(float(loss.detach()), rel=tolerance, abs=tolerance)
        gradients = torch.autograd.grad(loss, self.chosen + self.rejected)
        mine = out["chosen_gradient"] + out["rejected_gradient"]
        assert len(mine) == len(gradients)
        for a, b in zip(mine, gradients):
            np.testing.assert_allclose(a, b.numpy(), rtol=tolerance, atol=tolerance)
        assert any(abs(x) > 1e-4 for row in mine for x in row)


def log_odds(mean_logprob):
    p = mean_logprob.exp()
    return (p / (1 - p)).log()


# Formulas of the papers: of (chosen, rejected, reference chosen, reference rejected, tokens of both), beta = 0.3.
FORMULAS = {
    "{kind: dpo, beta: 0.3}": lambda c, r, a, b, n, m: -F.logsigmoid(0.3 * (c - a - r + b)),
    "{kind: dpo, beta: 0.3, label_smoothing: 0.2}":
        lambda c, r, a, b, n, m: -0.8 * F.logsigmoid(0.3 * (c - a - r + b)) - 0.2 * F.logsigmoid(-0.3 * (c - a - r + b)),
    "{kind: dpo_norm, beta: 0.3}": lambda c, r, a, b, n, m: -F.logsigmoid(0.3 * ((c - a) / n - (r - b) / m)),
    "{kind: dpo_hinge, beta: 0.3}": lambda c, r, a, b, n, m: (1 - 0.3 * (c - a - r + b)).clamp(min=0),
    "{kind: ipo, beta: 0.3}": lambda c, r, a, b, n, m: ((c - a) / n - (r - b) / m - 1 / 0.6) ** 2,
    "{kind: robust, beta: 0.3, label_smoothing: 0.2}":
        lambda c, r, a, b, n, m: (-0.8 * F.logsigmoid(0.3 * (c - a - r + b))
                                  + 0.2 * F.logsigmoid(-0.3 * (c - a - r + b))) / 0.6,
    "{kind: exo, beta: 0.3, label_smoothing: 0.2}":
        lambda c, r, a, b, n, m: sum(q * (q / p).log() for q, p in ((torch.sigmoid(0.3 * (c - a - r + b)), 0.8),
                                                                   (torch.sigmoid(-0.3 * (c - a - r + b)), 0.2))),
    "{kind: apo_zero, beta: 0.3}":
        lambda c, r, a, b, n, m: 1 - torch.sigmoid(0.3 * (c - a)) + torch.sigmoid(0.3 * (r - b)),
    "{kind: apo_down, beta: 0.3}":
        lambda c, r, a, b, n, m: torch.sigmoid(0.3 * (c - a)) + 1 - torch.sigmoid(0.3 * (c - a - r + b)),
    "{kind: cpo, beta: 0.3, cpo_alpha: 0}": lambda c, r, a, b, n, m: -F.logsigmoid(0.3 * (c - r)),
    "{kind: simpo, beta: 0.3, simpo_gamma: 0.7}":
        lambda c, r, a, b, n, m: -F.logsigmoid(0.3 * (c / n - r / m) - 0.7),
}


@pytest.mark.parametrize("options", FORMULAS)
@pytest.mark.parametrize("seed, scale", [(1, 1.0), (2, 8.0)])
def test_values_and_gradients_are_those_of_the_papers_formulas(options, seed, scale):
    pairs = Pairs(seed, scale=scale)
    pairs.check(pairs.run(options), FORMULAS[options](*pairs.sums()).mean())


@pytest.mark.parametrize("seed", [3, 4])
def test_orpo_is_its_formula(seed):
    pairs = Pairs(seed)
    c, r, _, _, n, m = pairs.sums()
    loss = -0.3 * F.logsigmoid(log_odds(c / n) - log_odds(r / m)).mean() + pairs.mean_nll()
    pairs.check(pairs.run("{kind: orpo, beta: 0.3}"), loss, tolerance=1e-8)


def test_margins_length_desensitising_and_the_nll_term_work_together():
    pairs = Pairs(5, count=9)
    c, r, a, b, _, _ = pairs.sums(ld_alpha=0.4)
    loss = -F.logsigmoid(0.1 * (c - a - r + b) - torch.tensor(pairs.margins, dtype=torch.float64)).mean() + 0.5 * pairs.mean_nll()
    pairs.check(pairs.run("{kind: dpo, ld_alpha: 0.4, rpo_alpha: 0.5}", margins=True), loss)


class StandInModel(torch.nn.Module):  # TRL looks for adapters among the modules
    """Returns given log-probs. `by_first_id` maps the first token id of the first row to the log-probs of a batch."""
    is_gradient_checkpointing = False

    def __init__(self, by_first_id):
        super().__init__()
        self.by_first_id = by_first_id

    def forward(self, input_ids, **_):
        log_probs = self.by_first_id[int(input_ids[0, 0])]
        zeros = torch.zeros_like(log_probs)
        return types.SimpleNamespace(log_probs=log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())


def padded(completions):
    """Log-probs [B, T - 1] as the fused head returns them, zero on prompt and padding, and the mask [B, T]."""
    width = max(len(x) for x in completions)
    rows = [torch.cat([x.new_zeros(PROMPT_TOKENS - 1), x, x.new_zeros(width - len(x))]) for x in completions]
    mask = [[0] * PROMPT_TOKENS + [1] * len(x) + [0] * (width - len(x)) for x in completions]
    return torch.stack(rows), torch.tensor(mask)


def stand_in_trainer(model, **fields):
    same = lambda x: x  # noqa: E731
    accelerator = types.SimpleNamespace(device=torch.device("cpu"), gather=same, gather_for_metrics=same)
    return types.SimpleNamespace(model=model, accelerator=accelerator, aux_loss_enabled=False, precompute_ref_logps=False,
                                 _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
                                 _total_train_tokens=0, _tp_size=1, **fields)


def trl_dpo(pairs, loss_types, weights, beta=0.3, label_smoothing=0.0, ld_alpha=None):
    log_probs, mask = padded(pairs.chosen + pairs.rejected)
    reference, _ = padded(pairs.reference_chosen + pairs.reference_rejected)
    model = StandInModel({7: log_probs})
    trainer = stand_in_trainer(
        model, ref_model=StandInModel({7: reference}), loss_types=loss_types, loss_weights=weights, beta=beta,
        label_smoothing=label_smoothing, ld_alpha=ld_alpha, f_divergence_type="reverse_kl", use_weighting=False,
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=None))
    inputs = {"input_ids": torch.full(mask.shape, 7), "attention_mask": torch.ones_like(mask), "completion_mask": mask}
    loss = DPOTrainer._compute_loss(trainer, model, inputs, return_outputs=False)
    return loss, {name: values[-1] for name, values in trainer._metrics["train"].items()}


@pytest.mark.parametrize("options, trl_name, smoothing", [
    ("{kind: dpo, beta: 0.3}", "sigmoid", 0.0), ("{kind: dpo_norm, beta: 0.3}", "sigmoid_norm", 0.0),
    ("{kind: dpo_hinge, beta: 0.3}", "hinge", 0.0), ("{kind: ipo, beta: 0.3}", "ipo", 0.0),
    ("{kind: robust, beta: 0.3, label_smoothing: 0.2}", "robust", 0.2),
    ("{kind: exo, beta: 0.3, label_smoothing: 0.125}", "exo_pair", 0.125),
    ("{kind: apo_zero, beta: 0.3}", "apo_zero", 0.0), ("{kind: apo_down, beta: 0.3}", "apo_down", 0.0)])
@pytest.mark.parametrize("seed, scale", [(11, 1.0), (12, 8.0)])
def test_dpo_and_its_kin_are_those_of_trls_trainer(options, trl_name, smoothing, seed, scale):
    pairs = Pairs(seed, scale=scale)
    loss, metrics = trl_dpo(pairs, [trl_name], [1.0], label_smoothing=smoothing)
    out = pairs.run(options)
    pairs.check(out, loss, tolerance=1e-7)  # TRL has the smoothing of exo in fp32
    assert out["chosen_reward"] == pytest.approx(metrics["rewards/chosen"], abs=1e-9)
    assert out["rejected_reward"] == pytest.approx(metrics["rewards/rejected"], abs=1e-9)
    assert out["margin"] == pytest.approx(metrics["rewards/margins"], abs=1e-9)
    assert out["accuracy"] == pytest.approx(metrics["rewards/accuracies"], abs=1e-6)


def test_length_desensitised_dpo_is_that_of_trls_trainer():
    pairs = Pairs(13)
    loss, _ = trl_dpo(pairs, ["sigmoid"], [1.0], ld_alpha=0.4)
    pairs.check(pairs.run("{kind: dpo, beta: 0.3, ld_alpha: 0.4}"), loss)


def test_rpo_is_trls_sum_of_sigmoid_and_sft():
    pairs = Pairs(14)
    loss, _ = trl_dpo(pairs, ["sigmoid", "sft"], [1.0, 0.6])
    pairs.check(pairs.run("{kind: dpo, beta: 0.3, rpo_alpha: 0.6}"), loss)


@pytest.mark.parametrize("seed, shift", [(21, 2.0), (22, -2.0)])
def test_kto_is_that_of_trls_trainer_with_its_reference_point(seed, shift):
    """A shift of the mismatched completions makes the mean log ratio positive, then negative, where z0 is 0."""
    rng = np.random.default_rng(seed)
    completions, mismatched = logprobs(rng, rng.integers(1, 9, 8)), logprobs(rng, rng.integers(1, 9, 8))
    with torch.no_grad():
        reference = [x + torch.from_numpy(rng.normal(0, 1, len(x))) for x in completions]
        mismatched_reference = [x - shift / len(x) + torch.from_numpy(rng.normal(0, 0.1, len(x))) for x in mismatched]
    labels = torch.tensor([True, False, True, True, False, True, False, True])

    log_probs, mask = padded(completions)
    kl_log_probs, kl_mask = padded(mismatched)
    model = StandInModel({7: log_probs, 9: kl_log_probs})
    trainer = stand_in_trainer(
        model, ref_model=StandInModel({7: padded(reference)[0], 9: padded(mismatched_reference)[0]}), beta=0.3,
        loss_type="kto", calculate_KL=True, desirable_weight=1.5, undesirable_weight=0.75,
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=None))
    trainer._compute_kl_logps = types.MethodType(KTOTrainer._compute_kl_logps, trainer)
    inputs = {"input_ids": torch.full(mask.shape, 7), "attention_mask": torch.ones_like(mask), "completion_mask": mask,
              "KL_input_ids": torch.full(kl_mask.shape, 9), "KL_attention_mask": torch.ones_like(kl_mask),
              "KL_completion_mask": kl_mask, "label": labels}
    loss = KTOTrainer._compute_loss(trainer, model, inputs, return_outputs=False)

    out = ours({"kind": "kto", "options": "{kind: kto, beta: 0.3, desirable_weight: 1.5, undesirable_weight: 0.75}",
                "completions": [{"logprobs": x.tolist(), "reference": y.tolist(), "desirable": bool(label)}
                                for x, y, label in zip(completions, reference, labels)],
                "mismatched": [{"logprobs": x.tolist(), "reference": y.tolist()}
                               for x, y in zip(mismatched, mismatched_reference)]})
    assert out["loss"] == pytest.approx(float(loss.detach()), abs=1e-9)
    assert out["reference_point"] == pytest.approx(trainer._metrics["train"]["kl"][-1], abs=1e-9)
    assert (out["reference_point"] > 0) == (shift > 0)
    gradients = torch.autograd.grad(loss, completions)
    for mine, theirs in zip(out["gradient"], gradients):
        np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-9)
    rewards = np.array(out["reward"])
    assert rewards[labels.numpy()].mean() == pytest.approx(trainer._metrics["train"]["rewards/chosen"][-1], abs=1e-9)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(loss, mismatched)  # TRL has no gradient through z0 either


@pytest.mark.parametrize("options, loss_type, beta, smoothing, per_token", [
    ("{kind: simpo, beta: 2.0, simpo_gamma: 0.7}", "simpo", 2.0, 0.0, True),
    ("{kind: simpo, label_smoothing: 0.2, simpo_gamma: 0.7}", "simpo", 2.0, 0.2, True),
    ("{kind: cpo, beta: 0.3}", "sigmoid", 0.3, 0.0, False),
    ("{kind: cpo, beta: 0.3, label_smoothing: 0.2}", "sigmoid", 0.3, 0.2, False)])
def test_simpo_and_cpo_are_those_of_trls_trainer(options, loss_type, beta, smoothing, per_token):
    pairs = Pairs(31)
    c, r, _, _, n, m = pairs.sums()
    trainer = stand_in_trainer(None, alpha=0.0, loss_type=loss_type, beta=beta, simpo_gamma=0.7, label_smoothing=smoothing)
    losses, chosen, rejected = CPOTrainer.cpo_loss(trainer, c / n if per_token else c, r / m if per_token else r)
    # get_batch_loss_metrics adds cpo_alpha (1 by default) times the mean over tokens; SimPO's authors have no such term.
    loss = losses.mean() if per_token else losses.mean() + pairs.mean_nll()
    out = pairs.run(options)
    pairs.check(out, loss)
    assert out["chosen_reward"] == pytest.approx(float(chosen.mean()), abs=1e-9)
    assert out["accuracy"] == pytest.approx(float((chosen > rejected).double().mean()), abs=1e-9)


def test_smoothed_dpo_is_trls_cpo_loss_on_log_ratios():
    """Current versions of TRL have no smoothing in `sigmoid`; its CPO trainer has it, of the same form."""
    pairs = Pairs(32)
    c, r, a, b, _, _ = pairs.sums()
    trainer = stand_in_trainer(None, alpha=0.0, loss_type="sigmoid", beta=0.3, label_smoothing=0.2)
    losses, _, _ = CPOTrainer.cpo_loss(trainer, c - a, r - b)
    pairs.check(pairs.run("{kind: dpo, beta: 0.3, label_smoothing: 0.2}"), losses.mean())


def test_orpo_is_that_of_trls_trainer():
    pairs = Pairs(33)
    c, r, _, _, n, m = pairs.sums()
    trainer = stand_in_trainer(None, beta=0.3)
    losses, chosen, _, _, _ = ORPOTrainer.odds_ratio_loss(trainer, c / n, r / m)
    out = pairs.run("{kind: orpo, beta: 0.3}")
    pairs.check(out, pairs.mean_nll() - losses.mean(), tolerance=1e-5)  # TRL's is fp32
    assert out["chosen_reward"] == pytest.approx(float(chosen.mean()), abs=1e-6)


@pytest.mark.parametrize("margins, centring", [(False, None), (True, None), (True, 0.05)])
def test_reward_loss_is_that_of_trls_trainer(margins, centring):
    rng = np.random.default_rng(41)
    rewards = torch.tensor(rng.normal(0, 3, 12), requires_grad=True)  # 6 chosen, then 6 rejected
    model = lambda **_: types.SimpleNamespace(logits=rewards[:, None])  # noqa: E731
    trainer = stand_in_trainer(types.SimpleNamespace(training=True),
                               args=types.SimpleNamespace(center_rewards_coefficient=centring))
    inputs = {"attention_mask": torch.ones(12, 3)}
    margin = rng.normal(0, 1, 6) if margins else np.zeros(6)
    if margins:
        inputs["margin"] = torch.from_numpy(margin)
    loss = RewardTrainer.compute_loss(trainer, model, inputs)
    out = ours({"kind": "reward", "options": f"{{center_rewards_coefficient: {centring or 0}}}",
                "chosen": rewards[:6].tolist(), "rejected": rewards[6:].tolist(), "margins": margin.tolist()})
    assert out["loss"] == pytest.approx(float(loss.detach()), abs=1e-9)
    gradient, = torch.autograd.grad(loss, rewards)
    np.testing.assert_allclose(out["chosen_gradient"] + out["rejected_gradient"], gradient.numpy(), atol=1e-9)


def test_smoothed_reward_loss_is_binary_cross_entropy_with_soft_labels():
    chosen = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([1.0, 1.5, 0.5], dtype=torch.float64, requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(chosen - rejected, torch.full((3,), 0.8, dtype=torch.float64))
    out = ours({"kind": "reward", "options": "{label_smoothing: 0.2}", "chosen": chosen.tolist(),
                "rejected": rejected.tolist(), "margins": []})
    assert out["loss"] == pytest.approx(float(loss.detach()), abs=1e-12)
    for mine, theirs in zip((out["chosen_gradient"], out["rejected_gradient"]), torch.autograd.grad(loss, (chosen, rejected))):
        np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-12)
