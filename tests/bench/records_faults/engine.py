"""A small inference engine of its own: the Llama decoder, with a place for every fault.

It reads model.safetensors and computes with plain tensor operations, so that nothing but the weights is
shared with the second, healthy engine (transformers). A `Fault` says what is wrong; the default is healthy.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Callable

import torch
import torch.nn.functional as F
from safetensors import safe_open

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass
class Fault:
    """What this engine does differently from the model that it claims to run."""

    rope_theta: float | None = None
    rope_offset: int = 0  # added to the position of every token; rotary embedding does not see it
    rope_gap: int = 0  # added to the position of drawn tokens only
    norm_eps: float | None = None
    window: int | None = None  # a query sees this many keys, itself included
    sinks_dropped: int = 0  # queries from position 32 on no longer see this many first keys
    softcap: float | None = None
    logits_dtype: torch.dtype | None = None
    softmax_dtype: torch.dtype | None = None
    scores_dtype: torch.dtype | None = None
    kv: str | None = None  # "int8" or "fp8"
    activations: torch.dtype | None = None  # rounded to this after every operation


def load_weights(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    """The tensors of a model directory in float32."""
    with safe_open(directory / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).float() for name in file.keys()}


class Engine:
    """Scores given tokens and draws new ones. One token a position, no padding on the left."""

    def __init__(self, directory: pathlib.Path, weights: dict[str, torch.Tensor], fault: Fault | None = None,
                 dtype: torch.dtype = torch.float32) -> None:
        self.config = json.loads((directory / "config.json").read_text())
        self.fault = fault or Fault()
        self.dtype = dtype
        self.weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.head = self.weights["model.embed_tokens.weight"]  # tied
        self.layers = self.config["num_hidden_layers"]
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.head_dim = self.config["head_dim"]

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.fault.activations is None else x.to(self.fault.activations).to(x.dtype)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        eps = self.config["rms_norm_eps"] if self.fault.norm_eps is None else self.fault.norm_eps
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return self._round(self.weights[name] * wide.to(self.dtype))

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._round(F.linear(x, self.weights[name]))

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        theta = self.config["rope_theta"] if self.fault.rope_theta is None else self.fault.rope_theta
        exponent = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        angle = positions.float()[:, None, :, None] * (theta ** -exponent)
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        left, right = x.chunk(2, -1)
        return self._round(x * cos + torch.cat([-right, left], -1) * sin)

    def _stored(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values as the cache holds them."""
        if self.fault.kv == "int8":
            scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
            return torch.round(x / scale) * scale
        if self.fault.kv == "fp8":
            return x.to(torch.float8_e4m3fn).to(x.dtype)
        return x

    def new_cache(self, rows: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (rows, self.kv_heads, length, self.head_dim)
        return [(torch.zeros(shape, dtype=self.dtype), torch.zeros(shape, dtype=self.dtype)) for _ in range(self.layers)]

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, prompt_lengths: torch.Tensor,
               cache: list[tuple[torch.Tensor, torch.Tensor]], seen: int) -> torch.Tensor:
        """Last hidden states of `tokens` [B, S], which stand at `positions`; the cache's first `seen` places are looked at."""
        rows, count = tokens.shape
        keys_at = torch.arange(seen)
        visible = keys_at[None, None, :] <= positions[:, :, None]
        if self.fault.window is not None:
            visible &= keys_at[None, None, :] > positions[:, :, None] - self.fault.window
        if self.fault.sinks_dropped:
            visible &= ~((keys_at[None, None, :] < self.fault.sinks_dropped) & (positions[:, :, None] >= 32))
        turned = positions + self.fault.rope_offset
        turned = turned + self.fault.rope_gap * (positions >= prompt_lengths[:, None])
        place = positions[:, None, :, None].expand(rows, self.kv_heads, count, self.head_dim)
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            y = self._norm(x, name + "input_layernorm.weight")
            q, k, v = (self._linear(y, f"{name}self_attn.{part}_proj.weight").view(rows, count, -1, self.head_dim).transpose(1, 2)
                       for part in "qkv")
            q, k = self._rotate(q, turned), self._rotate(k, turned)
            cache[layer][0].scatter_(2, place, self._stored(k))
            cache[layer][1].scatter_(2, place, self._stored(v))
            keys, values = (part[:, :, :seen].repeat_interleave(self.heads // self.kv_heads, 1) for part in cache[layer])
            scores = (q @ keys.transpose(2, 3)) * self.head_dim ** -0.5
            if self.fault.scores_dtype is not None:
                scores = scores.to(self.fault.scores_dtype)
            scores = self._round(scores).float().masked_fill(~visible[:, None], float("-inf"))
            mixed = self._round(scores.softmax(-1).to(self.dtype) @ values).transpose(1, 2).reshape(rows, count, -1)
            x = self._round(x + self._linear(mixed, name + "self_attn.o_proj.weight"))
            y = self._norm(x, name + "post_attention_layernorm.weight")
            y = self._round(F.silu(self._linear(y, name + "mlp.gate_proj.weight")) * self._linear(y, name + "mlp.up_proj.weight"))
            x = self._round(x + self._linear(y, name + "mlp.down_proj.weight"))
        return self._norm(x, "model.norm.weight")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        out = F.linear(hidden, self.head).float()
        if self.fault.softcap is not None:
            out = self.fault.softcap * torch.tanh(out / self.fault.softcap)
        if self.fault.logits_dtype is not None:
            out = out.to(self.fault.logits_dtype).float()
        return out

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        if self.fault.softmax_dtype is not None:
            return torch.log_softmax(logits.to(self.fault.softmax_dtype), -1).float()
        return torch.log_softmax(logits, -1)


def quantised(weights: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    """The weights after a round trip through 8 or 4 bits; embeddings and norms stay as they are."""
    trips: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "int8_tensor": lambda w: _integer(w, w.abs().max(), 127),
        "int8_channel": lambda w: _integer(w, w.abs().amax(1, keepdim=True), 127),
        "int4_32": lambda w: _grouped(w, 32),
        "int4_128": lambda w: _grouped(w, 128),
        "fp8": lambda w: (w / (w.abs().max() / 448)).to(torch.float8_e4m3fn).float() * (w.abs().max() / 448),
    }
    return {name: trips[how](w) if any(part in name for part in LINEAR) else w for name, w in weights.items()}


def _integer(w: torch.Tensor, largest: torch.Tensor, steps: int) -> torch.Tensor:
    return torch.round(w / (largest / steps)) * (largest / steps)


def _grouped(w: torch.Tensor, size: int) -> torch.Tensor:
    parts = [_integer(part, part.abs().amax(1, keepdim=True), 7) for part in w.split(size, 1)]
    return torch.cat(parts, 1)
