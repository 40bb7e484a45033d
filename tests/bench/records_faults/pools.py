"""What is computed once and used by many cases: weights, drawn completions, and their scores.

Everything is kept under runs/faults/{weights,pool} and is not computed again while it is there.
"""
from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine import Engine, Fault, load_weights, quantised
from player import END, Sampler, draw, prompts, score

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/smollm2-135m-instruct"
FAULTS = ROOT / "runs/faults"
WEIGHTS = FAULTS / "weights"
POOL = FAULTS / "pool"

LENGTH, COPIES = 64, 2
BF16, FP16 = torch.bfloat16, torch.float16


@dataclasses.dataclass
class Own:
    """An engine of this directory: which weights, changed how, run with which fault."""

    fault: Fault = dataclasses.field(default_factory=Fault)
    weights: str = "model"  # "model", or a directory under runs/faults/weights
    change: str = ""  # see `weights_of`
    dtype: torch.dtype = torch.float32


# name: the engine, what its draws follow, the seed. The short ones are named in `SHORTER`.
DRAWS: dict[str, tuple[Own, Sampler, int]] = {
    "base": (Own(), Sampler(), 1),
    "cool": (Own(), Sampler(temperature=0.7), 2),
    "bf16": (Own(dtype=BF16), Sampler(), 3),
    "topp": (Own(dtype=BF16), Sampler(top_p=0.9), 4),
    "topk": (Own(dtype=BF16), Sampler(top_k=20), 5),
    "repetition": (Own(dtype=BF16), Sampler(repetition_penalty=1.3), 6),
    "earlier": (Own(weights="earlier", dtype=BF16), Sampler(), 7),
    "int8": (Own(change="int8_channel", dtype=BF16), Sampler(), 8),
    "minp": (Own(dtype=BF16), Sampler(min_p=0.1), 9),
    "warm": (Own(dtype=BF16), Sampler(temperature=1.15), 10),
    "kv_int8": (Own(Fault(kv="int8"), dtype=BF16), Sampler(), 11),
    "kv_fp8": (Own(Fault(kv="fp8"), dtype=BF16), Sampler(), 12),
    "frequency": (Own(dtype=BF16), Sampler(frequency_penalty=0.5), 13),
    "presence": (Own(dtype=BF16), Sampler(presence_penalty=0.8), 14),
    "mintokens": (Own(dtype=BF16), Sampler(min_tokens=64), 15),
    "int4": (Own(change="int4_128", dtype=BF16), Sampler(), 16),
    "fp16": (Own(Fault(activations=FP16)), Sampler(), 17),
}

# What a bf16 engine scores of the bf16 draws: faults that are larger than what bf16 does by itself.
COARSE: dict[str, Own] = {
    "rope_theta": Own(Fault(rope_theta=10000.0)),
    "shard_stale": Own(change="shard_stale"),
    "norm_eps_1e-3": Own(Fault(norm_eps=1e-3)),
    "window_64": Own(Fault(window=64)),
    "lora_base": Own(weights="lora_base"),
    "int8_tensor": Own(change="int8_tensor"),
    "int4_32": Own(change="int4_32"),
    "sinks_dropped": Own(Fault(sinks_dropped=4)),
    "rope_gap": Own(Fault(rope_gap=1)),
    "fp8": Own(change="fp8"),
    "noise": Own(change="noise"),
    "lora_twice": Own(weights="lora_twice"),
}

# What a float32 engine scores of the float32 draws: smaller faults. The first four share one pass through the layers.
FINE: dict[str, Own] = {
    "softcap_30": Own(Fault(softcap=30.0)),
    "logits_fp16": Own(Fault(logits_dtype=FP16)),
    "softmax_bf16": Own(Fault(softmax_dtype=BF16)),
    "head_stale": Own(change="head_stale"),
    "weights_late": Own(weights="earlier"),
    "scores_bf16": Own(Fault(scores_dtype=BF16)),
    "layer_stale": Own(change="layer_stale"),
    "norm_eps_1e-6": Own(Fault(norm_eps=1e-6)),
    "rope_offset": Own(Fault(rope_offset=1)),
}

CONTEXTS = ("other_template", "bos_missing", "context_truncated", "other_system", "bos_twice")

# name: the draws, the scorer ("fp32" or "bf16" of transformers, or an engine), settings, other contexts.
# NAME.hf is what transformers says at the precision of the draws.
SCORES: dict[str, tuple[str, str | Own, Sampler, str]] = {
    **{f"{name}.hf": (name, "bf16" if own.dtype == BF16 else "fp32", Sampler(), "") for name, (own, _, _) in DRAWS.items()},
    "bf16.hf_fp32": ("bf16", "fp32", Sampler(), ""),
    "cool.hf_cool": ("cool", "fp32", Sampler(temperature=0.7), ""),
    "topp.hf_topp": ("topp", "bf16", Sampler(top_p=0.9), ""),
    "cool.hf_bf16": ("cool", "bf16", Sampler(), ""),
    **{f"base.{name}": ("base", own, Sampler(), "") for name, own in FINE.items()},
    **{f"bf16.{name}": ("bf16", dataclasses.replace(own, dtype=BF16), Sampler(), "") for name, own in COARSE.items()},
    **{f"bf16.{name}": ("bf16", "bf16", Sampler(), name) for name in CONTEXTS},
}


def cached(path: pathlib.Path, make: Any) -> Any:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(make()))
        partial.rename(path)
        print("made", path.name, flush=True)
    return json.loads(path.read_text())


def transformers_model(dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=BF16 if dtype == "bf16" else torch.float32).eval()


def save_model(name: str, weights: dict[str, torch.Tensor]) -> None:
    """A model directory of its own, in float32, whole or not there at all."""
    partial = WEIGHTS / f"{name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    for file in MODEL.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, partial / file.name)
    config = json.loads((MODEL / "config.json").read_text())
    (partial / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}, indent=2))
    save_file({k: v.contiguous() for k, v in weights.items()}, partial / "model.safetensors", metadata={"format": "pt"})
    partial.rename(WEIGHTS / name)


def make_weights() -> None:
    """A checkpoint a few real optimizer updates away, and the two wrong ways to bind an adapter.

    The model is taken to be a base with its adapter merged: base = model - adapter, scaled twice = model + adapter.
    """
    if not (WEIGHTS / "earlier").exists():
        rows = draws("base")
        model = transformers_model("fp32")
        # Two updates of AdamW on a policy gradient with made-up advantages; the products in bf16, the weights in float32.
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, weight_decay=0.0)
        for step in range(2):
            for i in range(2):
                row = rows[7 * (2 * step + i) % len(rows)]
                tokens = row["tokens"][:24]
                ids = torch.tensor([row["prompt"] + tokens])
                with torch.autocast("cpu", BF16):
                    logits = model(ids).logits[0, -len(tokens) - 1:-1].float()
                log_probs = torch.log_softmax(logits, -1).gather(1, ids[0, -len(tokens):, None])
                (log_probs.mean() * (0.5 if i else -0.5)).backward()
            optimizer.step()
            optimizer.zero_grad()
        names = set(load_weights(MODEL))
        save_model("earlier", {k: v.detach() for k, v in model.state_dict().items() if k in names})
    for name, times in (("lora_base", -1.0), ("lora_twice", 1.0)):
        if not (WEIGHTS / name).exists():
            weights, generator = load_weights(MODEL), torch.Generator().manual_seed(5)
            for key in sorted(weights):
                if "q_proj" in key or "v_proj" in key:
                    rows, columns = weights[key].shape
                    up = torch.randn(rows, 8, generator=generator) * 0.02
                    down = torch.randn(8, columns, generator=generator) * 0.1
                    weights[key] = weights[key] + times * 2.0 * (up @ down)
            save_model(name, weights)


def turns() -> tuple[list[dict], dict[str, list]]:
    """A second turn of every conversation: the first turn's 32 tokens, a user's line, 32 tokens more."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    user = [END, *tokenizer.encode("\n<|im_start|>user\nGo on, please.<|im_end|>\n<|im_start|>assistant\n")]

    def make() -> list[dict]:
        contexts = [row["prompt"] + row["tokens"][:32] + user for row in draws("base") if len(row["tokens"]) > 32]
        return draw(engine_of(Own()), contexts, 1, 32, Sampler(), 20)

    rows = cached(POOL / "turns.json", make)
    return rows, cached(POOL / "turns.hf.json", lambda: second_scores(rows))


def second_scores(rows: list[dict]) -> dict[str, list]:
    model = transformers_model("fp32")
    return score(model, rows, [(model, Sampler())])[0]


def engine_of(own: Own) -> Engine:
    """The engine with its weights read and changed."""
    weights = load_weights(MODEL if own.weights == "model" else WEIGHTS / own.weights)
    if own.change.endswith("_stale"):
        old = load_weights(WEIGHTS / "earlier")
        if own.change == "layer_stale":
            weights = {k: old[k] if ".layers.14." in k else v for k, v in weights.items()}
        else:  # the middle third of the layers, as one file of a sharded checkpoint
            weights = {k: old[k] if any(f".layers.{i}." in k for i in range(10, 20)) else v for k, v in weights.items()}
    elif own.change == "noise":
        generator = torch.Generator().manual_seed(99)
        weights = {k: v * (1 + 0.01 * torch.randn(v.shape, generator=generator)) for k, v in weights.items()}
    elif own.change:
        weights = quantised(weights, own.change)
    return Engine(MODEL, weights, own.fault, own.dtype)


def draws(name: str) -> list[dict]:
    own, sampler, seed = DRAWS[name]

    def make() -> list[dict]:
        contexts = prompts(AutoTokenizer.from_pretrained(MODEL))
        return draw(engine_of(own), contexts, COPIES, LENGTH, sampler, seed)

    return cached(POOL / f"{name}.json", make)


def changed_contexts(rows: list[dict], how: str) -> list[list[int]] | None:
    """What the scorer sees in place of the prompts, for faults of prompts."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    out = []
    for row in rows:
        prompt = row["prompt"]
        chat = tokenizer.decode(prompt).count("<|im_start|>") > 1
        if how == "bos_missing":
            prompt = prompt[1:]
        elif how == "bos_twice":
            prompt = [1, *prompt]
        elif how == "context_truncated":
            prompt = prompt[-6:]
        elif chat:
            text = tokenizer.decode(prompt)
            user = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
            if how == "other_system":
                system = "You are a terse expert. Answer without pleasantries."
                prompt = tokenizer.encode(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
            elif how == "other_template":
                prompt = [1, *tokenizer.encode(f"### Human: {user}\n### Assistant:")]
        out.append(prompt)
    return out if how else None


def body_of(scorer: str | Own) -> Any:
    """What the layers depend on: scorers that differ only behind them share one pass."""
    if isinstance(scorer, str):
        return scorer
    fault = dataclasses.replace(scorer.fault, softcap=None, logits_dtype=None, softmax_dtype=None)
    return dataclasses.replace(scorer, fault=fault, change="" if scorer.change == "head_stale" else scorer.change)


def scores(name: str) -> dict[str, list]:
    """The scores of this name, made together with all that share its pass through the layers."""
    path = POOL / f"{name}.json"
    if not path.exists():
        source, scorer, _, contexts = SCORES[name]
        together = [n for n, other in SCORES.items() if (other[0], body_of(other[1]), other[3]) == (source, body_of(scorer), contexts)
                    and not (POOL / f"{n}.json").exists()]
        rows = draws(source)
        model = engine_of(body_of(scorer)) if isinstance(scorer, Own) else transformers_model(scorer)
        readings = [(with_head(model, SCORES[n][1]), SCORES[n][2]) for n in together]
        for n, made in zip(together, score(model, rows, readings, changed_contexts(rows, contexts))):
            cached(POOL / f"{n}.json", lambda: made)
    return cached(path, lambda: None)


def with_head(model: Any, scorer: str | Own) -> Any:
    """The same layers with the head, the logits and the log-softmax of another scorer."""
    if isinstance(scorer, str):
        return model
    changed = copy.copy(model)
    changed.fault = scorer.fault
    if scorer.change == "head_stale":
        changed.head = load_weights(WEIGHTS / "earlier")["model.embed_tokens.weight"]
    return changed
