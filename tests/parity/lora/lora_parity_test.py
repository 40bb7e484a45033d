"""Adapters compared with PEFT: an adapter that `peft` saved is trained on by loss_driver, and its log-probs, the KL to the model
without adapters and the gradients of A and B are those of `peft` and autograd; what `tandem export` makes of it scores like `peft`.
"""
import json
import pathlib
import subprocess
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import make_models  # noqa: E402
from engine_parity_test import TANDEM, assert_same_scores, random_ids  # noqa: E402
from loss_parity_test import (BIN, GRADIENT, gradients, logprobs_of, make_groups, reference_loss,  # noqa: E402
                              set_behaviour)

torch.set_num_threads(2)

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name -> (kind, overrides, rank, alpha, rslora, targets)
CASES = {
    "qwen2": ("qwen2", {}, 4, 8, False, LINEAR),
    "qwen3_some": ("qwen3", {}, 3, 5, False, ["q_proj", "v_proj", "mlp.down_proj"]),
    "llama_rslora": ("llama", {"attention_bias": True, "mlp_bias": True}, 8, 4, True, LINEAR),
    "llama_with_head": ("llama", {"tie_word_embeddings": False}, 4, 8, False, [*LINEAR, "lm_head"]),
    "phi3_fused": ("phi3", {}, 4, 8, False, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """name -> (directory of the base, directory of the adapter, peft model)"""
    made = {}
    for name, (kind, overrides, rank, alpha, rslora, targets) in CASES.items():
        base = tmp_path_factory.mktemp(name)
        model = make_models.make_model(kind, base, seed=3, **overrides)
        config = peft.LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rslora, target_modules=targets, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config)
        model.peft_config["default"].base_model_name_or_path = str(base)
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
        directory = tmp_path_factory.mktemp(name + "_adapter")
        model.save_pretrained(directory)
        made[name] = (base, directory, model.eval())
    return made


def lora_yaml(name, adapter):
    _, _, rank, alpha, rslora, targets = CASES[name]
    return (f"rank: {rank}\nalpha: {alpha}\nrslora: {str(rslora).lower()}\ntargets: [{', '.join(targets)}]\n"
            f"start: {adapter}\n")


def run_driver(tmp_path, name, base, adapter, groups, options, reference=None):
    request = {"model": str(base), "reference": reference, "dtype": "fp32", "temperature": 1.0, "options": options, "groups": groups,
               "moments": str(tmp_path / "moments.safetensors"), "weights": str(tmp_path / "weights.safetensors"),
               "lora": lora_yaml(name, adapter)}
    out = subprocess.run([BIN], input=json.dumps(request), capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


class Reference:
    """The model without its adapters, as reference_loss calls it."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *args, **kwargs):
        with self.model.disable_adapter():
            return self.model(*args, **kwargs)


@pytest.mark.parametrize("name", CASES)
def test_logprobs_kl_and_gradients_are_pefts(adapted, tmp_path, name):
    base, adapter, model = adapted[name]
    groups = make_groups(1)
    set_behaviour(model, groups, 2, 0.3)
    out = run_driver(tmp_path, name, base, adapter, groups, GRADIENT + "loss: {kl_coefficient: 0.1}\n", "base")
    frozen = Reference(model)
    for g, group in enumerate(groups):
        for i, completion in enumerate(group["completions"]):
            with torch.no_grad():
                want = logprobs_of(model, group["prompt"], completion["ids"])
            assert out["proximal"][g][i] == pytest.approx(want.tolist(), abs=1e-5)
    loss = reference_loss(model, groups, None, frozen=frozen, beta=0.1)
    assert out["metrics"]["loss/kl"] > 1e-3
    assert out["metrics"]["loss/total"] == pytest.approx(float(loss.detach()), rel=1e-5, abs=1e-5)
    model.zero_grad()
    loss.backward()
    ours = gradients(tmp_path)
    theirs = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert ours.keys() == theirs.keys()
    norm = float(torch.sqrt(sum((g ** 2).sum() for g in theirs.values())))
    assert out["metrics"]["optimizer/grad_norm"] == pytest.approx(norm, rel=1e-5)
    for tensor, grad in theirs.items():
        assert (ours[tensor] - grad).abs().max() <= 1e-5 * max(1.0, norm), tensor


def test_an_update_moves_adapters_alone_and_by_adamw(adapted, tmp_path):
    base, adapter, _ = adapted["qwen2"]
    groups = make_groups(3)
    set_behaviour(adapted["qwen2"][2], groups, 4, 0.3)
    run_driver(tmp_path, "qwen2", base, adapter, groups, GRADIENT)
    before = load_file(adapter / "adapter_model.safetensors")
    after = load_file(tmp_path / "weights.safetensors")
    assert before.keys() == after.keys()
    # With beta1 = 0 the first update of AdamW is the sign of the gradient times the learning rate.
    for tensor, grad in gradients(tmp_path).items():
        step = after[tensor] - before[tensor]
        clear = grad.abs() > 1e-5
        assert torch.allclose(step[clear], -1e-4 * grad[clear].sign(), atol=2e-6), tensor


@pytest.mark.parametrize("name", CASES)
def test_the_export_of_a_foreign_adapter_scores_like_peft(adapted, tmp_path, name):
    base, adapter, model = adapted[name]
    merged = tmp_path / "merged"
    subprocess.run([TANDEM, "export", adapter, "--out", merged], check=True, capture_output=True)
    assert_same_scores(model, merged, random_ids(6, 40, make_models.SHAPE["vocab_size"]))
    again = tmp_path / "again"
    subprocess.run([TANDEM, "export", adapter, "--adapter", "--out", again], check=True, capture_output=True)
    ours, theirs = load_file(again / "adapter_model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    adapters = {n for n in theirs if "lora_" in n}  # PEFT saves a copy of an adapted head beside them
    assert ours.keys() == adapters and all(torch.equal(ours[n], theirs[n]) for n in adapters)
    config = json.loads((again / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base) and config["r"] == CASES[name][2]


def test_a_base_that_is_not_there_is_named(adapted, tmp_path):
    _, adapter, _ = adapted["qwen2"]
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "adapter_model.safetensors").write_bytes((adapter / "adapter_model.safetensors").read_bytes())
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "nobody/no-such-model"
    (moved / "adapter_config.json").write_text(json.dumps(config))
    done = subprocess.run([TANDEM, "export", moved, "--out", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 3 and "nobody/no-such-model" in done.stderr and "base model" in done.stderr
    assert not pathlib.Path(tmp_path / "out").exists()
