"""Model directories that are wrong in one known way, for play.py beside it. Written to runs/real_engines/models; what is there
already is not made again.

    OMP_NUM_THREADS=1 nice .deps/venv/bin/python tests/bench/real_engines/make_models.py

norm_eps     rms_norm_eps 1e-3 in place of 1e-5; every other file is a link to the model's
trained      20 updates of AdamW at lr 5e-5 on this project's pages, in float32, saved in bfloat16
shard_old    the model with layers 10 to 19 of `trained`
lora_merged  the model with an adapter of rank 8 on the four projections of attention (alpha 16, 30 updates of Adam at lr 2e-4),
             merged in float32 and saved in bfloat16
"""
from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/smollm2-135m-instruct"
MODELS = ROOT / "runs/real_engines/models"
RANK, ALPHA = 8, 16
ROWS, LENGTH = 2, 128  # of one update


def linked(name: str, **changed: Any) -> pathlib.Path:
    """A directory of links to the model's files, but for the weights, with a config of its own."""
    folder = MODELS / f"{name}.partial"
    folder.mkdir(parents=True, exist_ok=True)
    for file in MODEL.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json" and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changed}, indent=2), encoding="utf-8")
    return folder


def save(name: str, weights: dict[str, torch.Tensor]) -> None:
    folder = linked(name)
    save_file({key: value.to(torch.bfloat16).contiguous() for key, value in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    folder.rename(MODELS / name)


def train(model: Any, parameters: list[torch.Tensor], learning_rate: float, updates: int) -> None:
    """On the text of this project's pages, in order of their names."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    text = "\n".join(page.read_text(encoding="utf-8")[:20000] for page in sorted((ROOT / "docs").glob("*.md")))
    ids = torch.tensor(tokenizer(text)["input_ids"])
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    for update in range(updates):
        rows = ids[update * ROWS * LENGTH:(update + 1) * ROWS * LENGTH].reshape(ROWS, LENGTH)
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"update {update + 1} of {updates}: loss {loss.item():.3f}", flush=True)


class WithAdapter(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.down = torch.nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features ** 0.5)
        self.up = torch.nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + (x @ self.down.T) @ self.up.T * (ALPHA / RANK)

    def delta(self) -> torch.Tensor:
        return (self.up @ self.down).detach() * (ALPHA / RANK)


def make_trained(base: dict[str, torch.Tensor]) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    train(model, list(model.parameters()), 5e-5, 20)
    moved = model.state_dict()
    save("trained", {key: moved[key].detach() for key in base})


def make_lora(base: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).requires_grad_(False)
    adapters = {}
    for index, layer in enumerate(model.model.layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            adapter = WithAdapter(getattr(layer.self_attn, name))
            setattr(layer.self_attn, name, adapter)
            adapters[f"model.layers.{index}.self_attn.{name}.weight"] = adapter
    train(model, [part for adapter in adapters.values() for part in (adapter.down, adapter.up)], 2e-4, 30)
    save("lora_merged", {key: value.float() + adapters[key].delta() if key in adapters else value for key, value in base.items()})


def distance(name: str, base: dict[str, torch.Tensor]) -> None:
    """How far the saved weights are from the model's."""
    other = load_file(MODELS / name / "model.safetensors")
    moved = sum(float((other[key].float() - value.float()).square().sum()) for key, value in base.items()) ** 0.5
    whole = sum(float(value.float().square().sum()) for value in base.values()) ** 0.5
    share = sum(int((other[key] != value).sum()) for key, value in base.items()) / sum(value.numel() for value in base.values())
    print(f"{name}: |W' - W| / |W| = {moved / whole:.2e}, {100 * share:.1f} % of the weights differ in bfloat16")


def main() -> None:
    base = load_file(MODEL / "model.safetensors")
    if not (MODELS / "norm_eps").exists():
        folder = linked("norm_eps", rms_norm_eps=1e-3)
        (folder / "model.safetensors").symlink_to(MODEL / "model.safetensors")
        folder.rename(MODELS / "norm_eps")
    if not (MODELS / "trained").exists():
        make_trained(base)
    if not (MODELS / "shard_old").exists():
        trained = load_file(MODELS / "trained/model.safetensors")
        save("shard_old", {key: trained[key] if any(f".layers.{i}." in key for i in range(10, 20)) else value
                           for key, value in base.items()})
    if not (MODELS / "lora_merged").exists():
        make_lora(base)
    for name in ("trained", "shard_old", "lora_merged"):
        distance(name, base)


if __name__ == "__main__":
    main()
