"""Advantages and value targets against computations that torch makes independently or that others wrote: TRL's formulas of
groups, GAE as a product with a matrix, and V-trace as IMPALA's authors wrote it (deepmind/scalable_agent,
vtrace.from_importance_weights), on the same numbers."""
import json
import os
import pathlib
import subprocess

import pytest
import torch


DRIVER = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tests" / "advantage_driver"


def driver(question):
    done = subprocess.run([DRIVER], input=json.dumps(question), capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


def case(seed, length):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(length, generator=generator, dtype=torch.float64)
    return {"rewards": draw(), "values": draw(), "log_ratios": 0.5 * draw(), "bootstrap": float(draw()[0])}


def yaml(options):
    return "".join(f"{name}: {value}\n" for name, value in options.items())


def ask_targets(numbers, estimator, **options):
    question = {"kind": "targets", "estimator": estimator, "options": yaml(options), "bootstrap": numbers["bootstrap"]}
    question |= {name: numbers[name].tolist() for name in ("rewards", "values", "log_ratios")}
    answer = driver(question)
    return torch.tensor(answer["advantages"], dtype=torch.float64), torch.tensor(answer["targets"], dtype=torch.float64)


def next_values(numbers):
    return torch.cat([numbers["values"][1:], torch.tensor([numbers["bootstrap"]], dtype=torch.float64)])


@pytest.mark.parametrize("seed,length", [(0, 1), (1, 2), (2, 17), (3, 200)])
@pytest.mark.parametrize("gamma,lam", [(1.0, 0.95), (0.9, 0.5), (0.99, 0.0), (1.0, 1.0)])
def test_gae_is_the_product_of_the_temporal_differences_with_a_triangular_matrix(seed, length, gamma, lam):
    numbers = case(seed, length)
    delta = numbers["rewards"] + gamma * next_values(numbers) - numbers["values"]
    steps = torch.arange(length)
    distance = (steps[None, :] - steps[:, None]).to(torch.float64)
    weights = torch.where(distance >= 0, (gamma * lam) ** distance.clamp(min=0), torch.zeros(()))
    advantages, targets = ask_targets(numbers, "gae", gamma=gamma, **{"lambda": lam})
    torch.testing.assert_close(advantages, weights @ delta, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(targets, weights @ delta + numbers["values"], atol=1e-9, rtol=1e-9)


def scalable_agent_vtrace(numbers, gamma, max_rho, max_c):
    """from_importance_weights of deepmind/scalable_agent, lambda 1, without its policy-gradient rho."""
    rhos = torch.exp(numbers["log_ratios"])
    clipped_rhos, cs = rhos.clamp(max=max_rho), rhos.clamp(max=max_c)
    values, values_next = numbers["values"], next_values(numbers)
    deltas = clipped_rhos * (numbers["rewards"] + gamma * values_next - values)
    acc, vs_minus_v = torch.zeros((), dtype=torch.float64), []
    for t in reversed(range(len(values))):
        acc = deltas[t] + gamma * cs[t] * acc
        vs_minus_v.insert(0, acc)
    vs = torch.stack(vs_minus_v) + values
    vs_next = torch.cat([vs[1:], torch.tensor([numbers["bootstrap"]], dtype=torch.float64)])
    return numbers["rewards"] + gamma * vs_next - values, vs


@pytest.mark.parametrize("seed,length", [(4, 1), (5, 3), (6, 50)])
@pytest.mark.parametrize("max_rho,max_c", [(1.0, 1.0), (2.0, 0.5)])
def test_vtrace_is_that_of_its_authors(seed, length, max_rho, max_c):
    numbers = case(seed, length)
    want = scalable_agent_vtrace(numbers, 0.97, max_rho, max_c)
    got = ask_targets(numbers, "vtrace", gamma=0.97, max_rho=max_rho, max_c=max_c, **{"lambda": 1.0})
    for mine, theirs in zip(got, want):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-9)


def test_whitening_is_over_all_tokens_with_the_variance_of_a_sample():
    rewards, lengths = [1.0, -2.0, 0.5, 0.0, 3.0], [2, 1, 4, 3, 1]
    got = driver({"kind": "whitened", "rewards": rewards, "lengths": lengths})["advantages"]
    tokens = torch.cat([torch.full((length,), reward) for reward, length in zip(rewards, lengths)])
    want = (tokens - tokens.mean()) * torch.rsqrt(tokens.var(unbiased=True) + 1e-8)
    torch.testing.assert_close(torch.tensor(sum(got, [])), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind,want", [
    ("leave_one_out", lambda r: (r.numel() * r - r.sum()) / (r.numel() - 1)),            # trl RLOOTrainer
    ("mean_only", lambda r: r - r.mean()),                                              # trl GRPO, scale_rewards none
    ("group_norm", lambda r: (r - r.mean()) / (r.std() + 1e-4)),                        # trl GRPO, scale_rewards group
])
def test_group_advantages_are_trls(kind, want):
    rewards = torch.tensor([0.0, 1.0, 0.25, 1.0, -3.0], dtype=torch.float64)
    got = driver({"kind": "group", "options": f"kind: {kind}\n", "rewards": rewards.tolist()})["advantages"]
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), want(rewards), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_value_loss_and_its_gradient_are_trls(clip):
    """TRL's PPO trainer computes it inline: 0.5 * mean(max((v - R)^2, (clamp(v, v0 - c, v0 + c) - R)^2))."""
    generator = torch.Generator().manual_seed(9)
    values, start, targets = (torch.randn(64, generator=generator) for _ in range(3))
    leaf = values.clone().requires_grad_(True)
    plain = (leaf - targets).square()
    clipped = (torch.clamp(leaf, start - clip, start + clip) - targets).square()
    loss = 0.5 * (torch.max(plain, clipped) if clip > 0 else plain).sum()
    loss.backward()
    got = driver({"kind": "value_loss", "clip": clip, "values": values.tolist(), "start": start.tolist(),
                  "targets": targets.tolist()})
    assert got["loss"] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(torch.tensor(got["grad"]), leaf.grad, atol=1e-5, rtol=1e-5)
